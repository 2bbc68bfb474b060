package backup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"filippo.io/age"
	"filippo.io/age/armor"
)

const (
	ageMagic = "age-encryption.org/"
	// maxSecret bounds what is read from a file with identities or a passphrase, in bytes.
	maxSecret = 64 << 10
	// maxWork bounds what opening a file of unknown origin may cost: 2^22 rounds take some seconds and 4 GiB.
	maxWork = 22
)

// Keys open an encrypted snapshot. At most one is set.
type Keys struct {
	IdentityFile   string // of age, as age-keygen writes it
	PassphraseFile string // its first line is the passphrase
}

// Locks encrypt a snapshot: for recipients, or with a passphrase.
type Locks struct {
	Recipients     []string // of age: age1...
	PassphraseFile string
}

// None reports whether nothing is to be encrypted.
func (l Locks) None() bool { return len(l.Recipients) == 0 && l.PassphraseFile == "" }

// Encrypt returns a writer that encrypts what it is given into w. Close ends the file; it does not close w.
func Encrypt(w io.Writer, l Locks) (io.WriteCloser, error) {
	recipients, err := l.recipients()
	if err != nil {
		return nil, err
	}
	return age.Encrypt(w, recipients...)
}

func (l Locks) recipients() ([]age.Recipient, error) {
	switch {
	case l.None():
		return nil, errors.New("a recipient or a passphrase is needed")
	case len(l.Recipients) > 0 && l.PassphraseFile != "":
		return nil, errors.New("recipients and a passphrase cannot go together")
	case l.PassphraseFile != "":
		text, err := passphrase(l.PassphraseFile)
		if err != nil {
			return nil, err
		}
		r, err := age.NewScryptRecipient(text)
		return []age.Recipient{r}, err
	}
	var out []age.Recipient
	for _, text := range l.Recipients {
		r, err := age.ParseX25519Recipient(text)
		if err != nil {
			return nil, fmt.Errorf("not a recipient of age: %w", err)
		}
		out = append(out, r)
	}
	return out, nil
}

// decrypt returns what is in r, whether it is encrypted or not.
func decrypt(in *bufio.Reader, keys Keys) (plain *bufio.Reader, encrypted bool, err error) {
	var src io.Reader = in
	start, err := in.Peek(len(armor.Header))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	switch {
	case strings.HasPrefix(string(start), ageMagic):
	case string(start) == armor.Header:
		src = armor.NewReader(in)
	default:
		return in, false, nil
	}
	identities, err := keys.identities()
	if err != nil {
		return nil, true, err
	}
	out, err := age.Decrypt(src, identities...)
	var none *age.NoIdentityMatchError
	if errors.As(err, &none) {
		return nil, true, errors.New("the snapshot is encrypted for another identity or with another passphrase")
	}
	if err != nil {
		return nil, true, errors.Join(ErrDamaged, err)
	}
	return bufio.NewReaderSize(out, 64<<10), true, nil
}

func (k Keys) identities() ([]age.Identity, error) {
	switch {
	case k.IdentityFile == "" && k.PassphraseFile == "":
		return nil, errors.New("the snapshot is encrypted: an identity file or a passphrase file is needed")
	case k.IdentityFile != "" && k.PassphraseFile != "":
		return nil, errors.New("an identity file and a passphrase file cannot go together")
	case k.PassphraseFile != "":
		text, err := passphrase(k.PassphraseFile)
		if err != nil {
			return nil, err
		}
		id, err := age.NewScryptIdentity(text)
		if err != nil {
			return nil, err
		}
		id.SetMaxWorkFactor(maxWork)
		return []age.Identity{id}, nil
	}
	text, err := readSecret(k.IdentityFile)
	if err != nil {
		return nil, err
	}
	out, err := age.ParseIdentities(strings.NewReader(text))
	if err != nil {
		return nil, errors.New("the identity file is not one of age") // age's own words may hold a part of it
	}
	return out, nil
}

func passphrase(path string) (string, error) {
	text, err := readSecret(path)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(text, "\n")
	if line = strings.TrimSuffix(line, "\r"); line == "" {
		return "", errors.New("the passphrase is empty")
	}
	return line, nil
}

func readSecret(path string) (_ string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(text) > maxSecret {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxSecret)
	}
	return string(text), err
}
