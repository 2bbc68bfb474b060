package fleet

import (
	"errors"
	"net"
	"net/url"
	"path"
	"regexp"
	"strings"
)

const (
	// MaxModels is how many models an endpoint may name.
	MaxModels = 8
	// DefaultModelHub is the address that references of models begin with, wherever an installation fetches them from.
	DefaultModelHub = "https://huggingface.co"
	// ModelCachePath is where workers find their models, below the paths of their network volume.
	ModelCachePath = "huggingface-cache/hub"

	maxModelName = 96  // bytes of organization and name
	maxModelRef  = 128 // bytes of a branch, tag or commit
)

// ModelRef names a revision of a model of a hub.
type ModelRef struct {
	Repo     string // organization/name
	Revision string // branch, tag or commit
}

var (
	modelPart     = regexp.MustCompile(`^[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?$`)
	modelRevision = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/+-]*$`)

	errModelRef = errors.New("must be " + DefaultModelHub + "/ORGANIZATION/NAME or " + DefaultModelHub + "/ORGANIZATION/NAME:REVISION")
)

// ParseModelRef reads a reference; without a revision it names the branch main. The error says what a reference must be.
func ParseModelRef(text string) (ModelRef, error) {
	rest, ok := strings.CutPrefix(text, DefaultModelHub+"/")
	repo, revision, named := strings.Cut(rest, ":")
	if !named {
		revision = "main"
	}
	org, name, two := strings.Cut(repo, "/")
	// The names of folders and files are made from both, so that "--" separates and ".." leads nowhere.
	odd := strings.Contains(repo, "--") || strings.Contains(repo, "..") || strings.HasSuffix(name, ".git")
	if !ok || !two || odd || len(repo) > maxModelName || !modelPart.MatchString(org) || !modelPart.MatchString(name) || !isModelRevision(revision) {
		return ModelRef{}, errModelRef
	}
	return ModelRef{repo, revision}, nil
}

func isModelRevision(text string) bool {
	return len(text) <= maxModelRef && modelRevision.MatchString(text) && path.Clean(text) == text &&
		!strings.Contains(text, "..") && !strings.Contains(text, "/.") && !strings.HasSuffix(text, ".lock") && !strings.HasSuffix(text, ".")
}

// String is the whole reference.
func (r ModelRef) String() string { return DefaultModelHub + "/" + r.Repo + ":" + r.Revision }

// Folder is the name that the hub's own clients give to the model's folder in a cache.
func (r ModelRef) Folder() string { return "models--" + strings.ReplaceAll(r.Repo, "/", "--") }

// ParseModelRefs reads the references of one endpoint, which names a model once, since workers find one revision of each. The error
// says which one is wrong, by its place in the list from 0, and what it must be.
func ParseModelRefs(texts []string) (out []ModelRef, wrong int, err error) {
	seen := map[string]bool{}
	for i, text := range texts {
		ref, err := ParseModelRef(text)
		switch {
		case err != nil:
			return nil, i, err
		case i >= MaxModels:
			return nil, i, errors.New("must be one of at most 8")
		case seen[strings.ToLower(ref.Repo)]:
			return nil, i, errors.New("must be of a model that the list does not name before")
		}
		seen[strings.ToLower(ref.Repo)] = true
		out = append(out, ref)
	}
	return out, 0, nil
}

// CheckModelHub returns what is wrong with the address of a hub: it is one of https, or on the host's own loopback of http.
func CheckModelHub(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.HasSuffix(text, "/"):
		return errors.New("must be an address like " + DefaultModelHub + ", without a slash at its end")
	case u.Scheme == "https":
		return nil
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()) {
		return nil
	}
	return errors.New("must be https, or http on loopback")
}
