package logs

import (
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
)

// WriterOptions bound what a Writer takes from the disk. The zero value means
// the defaults.
type WriterOptions struct {
	MaxBytes int64 // of one file; default 10 MiB, 64 KiB at least
	Keep     int   // files of a series, the current one included; default 3, 2 to 100
	Rate     int64 // bytes per second on average; default 10 MiB/s
	Burst    int64 // bytes above Rate that are kept at once; default 2 x Rate
	// Owner is the id, of user and group, that the container's pipes are given to: that of its root. 0 is
	// the host's own.
	Owner uint32
}

func (o WriterOptions) withDefaults() WriterOptions {
	if o.MaxBytes == 0 {
		o.MaxBytes = 10 << 20
	}
	if o.Keep == 0 {
		o.Keep = 3
	}
	if o.Rate == 0 {
		o.Rate = 10 << 20
	}
	if o.Burst == 0 {
		o.Burst = 2 * o.Rate
	}
	return o
}

// Validate reports the first option that is out of its range.
func (o WriterOptions) Validate() error {
	o = o.withDefaults()
	switch {
	case o.MaxBytes < minFile:
		return fmt.Errorf("log option max-bytes: less than %d", minFile)
	case o.Keep < 2 || o.Keep > maxKeep:
		return fmt.Errorf("log option keep: not in 2..%d", maxKeep)
	case o.Rate < int64(maxRecord):
		return fmt.Errorf("log option rate: less than %d", maxRecord)
	case o.Burst < int64(maxRecord):
		return fmt.Errorf("log option burst: less than %d", maxRecord)
	}
	return nil
}

const (
	minFile = 64 << 10
	maxKeep = 100
)

// LoggerURI returns the logging URI that makes the runtime's shim start the
// logger program for a container, writing to the folder dir. Both paths must
// be absolute.
func LoggerURI(program, dir string, o WriterOptions) (string, error) {
	if !filepath.IsAbs(program) || !filepath.IsAbs(dir) {
		return "", fmt.Errorf("logging uri: program and folder must be absolute paths")
	}
	if err := o.Validate(); err != nil {
		return "", err
	}
	q := url.Values{"dir": {filepath.Clean(dir)}}
	for key, n := range map[string]int64{"max-bytes": o.MaxBytes, "keep": int64(o.Keep), "rate": o.Rate, "burst": o.Burst, "owner": int64(o.Owner)} {
		if n != 0 {
			q.Set(key, strconv.FormatInt(n, 10))
		}
	}
	return (&url.URL{Scheme: "binary", Path: filepath.Clean(program), RawQuery: q.Encode()}).String(), nil
}

// ParseArgs reads the arguments that a shim makes from LoggerURI's query: keys
// and values in turn, in any order.
func ParseArgs(args []string) (dir string, o WriterOptions, err error) {
	if len(args)%2 != 0 {
		return "", o, fmt.Errorf("argument %q: no value", args[len(args)-1])
	}
	for i := 0; i < len(args); i += 2 {
		key, value := args[i], args[i+1]
		if key == "dir" {
			dir = value
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return "", o, fmt.Errorf("argument %q: not a number", key)
		}
		switch key {
		case "max-bytes":
			o.MaxBytes = n
		case "keep":
			o.Keep = int(min(max(n, -1), maxKeep+1))
		case "rate":
			o.Rate = n
		case "burst":
			o.Burst = n
		case "owner":
			if n < 0 || n >= math.MaxUint32 { // the last one means "leave it" to chown(2)
				return "", o, fmt.Errorf("argument %q: no id", key)
			}
			o.Owner = uint32(n)
		default:
			return "", o, fmt.Errorf("argument %q: unknown", key)
		}
	}
	if !filepath.IsAbs(dir) || strings.ContainsRune(dir, 0) {
		return "", o, fmt.Errorf("argument %q: must be an absolute path", "dir")
	}
	return dir, o, o.Validate()
}
