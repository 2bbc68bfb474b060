package fleet

import (
	"path"
	"slices"
	"strings"
	"testing"
)

func TestParseModelRef(t *testing.T) {
	const hub = "https://huggingface.co/"
	for text, want := range map[string]ModelRef{
		hub + "org/name":                       {"org/name", "main"},
		hub + "org/name:v1.0":                  {"org/name", "v1.0"},
		hub + "Org_1/Na.me-2:refs/pr/1":        {"Org_1/Na.me-2", "refs/pr/1"},
		hub + "a/b:feature/x+y":                {"a/b", "feature/x+y"},
		hub + "a/" + strings.Repeat("n", 94):   {"a/" + strings.Repeat("n", 94), "main"},
		hub + "a/b:" + strings.Repeat("0", 40): {"a/b", strings.Repeat("0", 40)},
	} {
		if got, err := ParseModelRef(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "org/name", hub, hub + "name", hub + "org/", hub + "/name", hub + "org/name/more", "http://huggingface.co/org/name",
		"https://huggingface.co.example/org/name", "https://example.com/org/name", hub + "../name", hub + "org/..", hub + "org/na..me",
		hub + "org/na--me", hub + "o--rg/name", hub + "-org/name", hub + "org/.name", hub + "org/name-", hub + "org/name.git", hub + "org/na me",
		hub + "org/name?x=y", hub + "org/name:", hub + "org/name:..", hub + "org/name:a/../b", hub + "org/name:/a", hub + "org/name:a//b",
		hub + "org/name:a/", hub + "org/name:-x", hub + "org/name:a/.b", hub + "org/name:a.lock", hub + "org/name:a b", hub + "org/name:a:b",
		hub + "org/name:a\x00", hub + "a/" + strings.Repeat("n", 95), hub + "a/b:" + strings.Repeat("r", 129), hub + "org/name%2f..",
		strings.ToUpper(hub) + "org/name",
	} {
		if got, err := ParseModelRef(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

func TestParseModelRefs(t *testing.T) {
	const hub = "https://huggingface.co/"
	many := []string{}
	for _, name := range strings.Split("abcdefghi", "") {
		many = append(many, hub+"o/"+name)
	}
	if got, _, err := ParseModelRefs(many[:MaxModels]); err != nil || len(got) != MaxModels || got[7].Repo != "o/h" {
		t.Errorf("%v, %v", got, err)
	}
	for _, c := range []struct {
		list  []string
		wrong int
		says  string
	}{
		{many, MaxModels, "at most 8"},
		{[]string{hub + "o/a", "x"}, 1, "must be " + hub},
		{[]string{hub + "o/a:x", hub + "o/b", hub + "O/A:y"}, 2, "does not name before"},
	} {
		if _, wrong, err := ParseModelRefs(c.list); err == nil || wrong != c.wrong || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %d, %v", c.list, wrong, err)
		}
	}
}

func TestCheckModelHub(t *testing.T) {
	for _, good := range []string{DefaultModelHub, "https://hub.example:8443/mirror", "http://127.0.0.1:80", "http://localhost:1", "http://[::1]:1"} {
		if err := CheckModelHub(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "huggingface.co", "http://hub.example", "ftp://hub.example", "https://", "https://:80", "https://u:p@hub.example", "https://hub.example/",
		"https://hub.example?a", "https://hub.example#a", "http://10.0.0.1", "file:///etc",
	} {
		if CheckModelHub(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// FuzzParseModelRef: whatever is read names one folder and files below one, and is read again as what it is.
func FuzzParseModelRef(f *testing.F) {
	for _, seed := range []string{"https://huggingface.co/org/name", "https://huggingface.co/org/name:refs/pr/1", "https://huggingface.co/o/..", "x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ref, err := ParseModelRef(text)
		if err != nil {
			return
		}
		if again, err := ParseModelRef(ref.String()); err != nil || again != ref {
			t.Errorf("%q: %+v is read as %+v, %v", text, ref, again, err)
		}
		if folder := ref.Folder(); path.Base(folder) != folder || strings.Count(folder, "--") != 2 || len(folder) > 255 {
			t.Errorf("%q: folder %q", text, folder)
		}
		parts := strings.Split(ref.Revision, "/")
		if path.Join("/a", ref.Revision) != "/a/"+ref.Revision || slices.Contains(parts, "..") || slices.Contains(parts, "") {
			t.Errorf("%q: revision %q", text, ref.Revision)
		}
	})
}
