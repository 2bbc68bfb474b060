package containerfs

import (
	"archive/tar"
	"math"
	"path"
	"strconv"
	"strings"

	"gantry/fleet"
)

// kind is what an entry of an archive becomes.
type kind int

const (
	kindSkip kind = iota // says something of the archive, not of a file
	kindFile
	kindFolder
	kindLink
	kindHard
)

// entry is a checked entry of an archive.
type entry struct {
	kind   kind
	folder string // of the entry, relative; "" for the destination itself
	name   string // "" for the destination itself, otherwise one name without "/"
	source string // kindHard: an earlier entry, relative
	target string // kindLink: as the archive gives it
	mode   uint32 // permission bits; set-user-id and set-group-id are dropped
	uid    int    // as the archive gives it
	gid    int
}

const (
	permBits  = 0o777
	stickyBit = 0o1000
	maxOwner  = math.MaxUint32 - 1 // the highest number means "unchanged" to the kernel
)

// checkEntry says what an entry becomes. It refuses names that are absolute, lead out of the
// destination or cannot be, and everything that is not a file, a folder or a link. number counts the
// entries from 1, for the error, which repeats nothing of the archive.
func checkEntry(h *tar.Header, number int) (entry, error) {
	refuse := func(why string) (entry, error) {
		return entry{}, &fleet.Error{Code: fleet.CodeInvalid, Msg: "entry " + ordinal(number) + " of the archive: " + why}
	}
	out := entry{mode: uint32(h.Mode & permBits), uid: h.Uid, gid: h.Gid} //nolint:gosec // nine bits
	if sparse(h) {
		return refuse("sparse files cannot be unpacked")
	}
	switch h.Typeflag {
	case tar.TypeReg:
		out.kind = kindFile
	case tar.TypeDir:
		out.kind, out.mode = kindFolder, out.mode|uint32(h.Mode&stickyBit) //nolint:gosec // one bit
	case tar.TypeSymlink:
		out.kind, out.target = kindLink, h.Linkname
	case tar.TypeLink:
		out.kind = kindHard
	case tar.TypeXGlobalHeader:
		return out, nil
	default:
		return refuse("only files, folders and links can be unpacked")
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) > maxOwner || int64(h.Gid) > maxOwner {
		return refuse("its owner is not a possible one")
	}
	clean, ok := relative(h.Name)
	if !ok {
		return refuse("its name must be relative, without .. and of possible length")
	}
	if clean == "" && out.kind != kindFolder {
		return refuse("it has no name")
	}
	if out.kind == kindFile && strings.HasSuffix(h.Name, "/") {
		return refuse("a file's name must not end with /")
	}
	if deep(clean) {
		return refuse(tooDeep)
	}
	out.folder, out.name = split(clean)
	if out.kind == kindLink && (out.target == "" || len(out.target) > maxPath || strings.ContainsRune(out.target, 0)) {
		return refuse("its link is not a possible one")
	}
	if out.kind == kindHard {
		if out.source, ok = relative(h.Linkname); !ok || out.source == "" || deep(out.source) {
			return refuse("its link must name an entry of the archive")
		}
	}
	return out, nil
}

// relative returns the clean form of a name that stays below the folder it is relative to: "" for
// the folder itself, and false for a name that does not.
func relative(name string) (string, bool) {
	if name == "" || path.IsAbs(name) || len(name) > maxPath || strings.ContainsRune(name, 0) {
		return "", false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." || len(part) > maxName {
			return "", false
		}
	}
	clean := path.Clean(name)
	if clean == "." {
		return "", true
	}
	return clean, true
}

// tooDeep words what lies below more folders than are ever open at once.
var tooDeep = "it lies below more than " + strconv.Itoa(maxDepth) + " levels of folders"

func deep(clean string) bool { return strings.Count(clean, "/") > maxDepth }

// sparse reports whether an entry stands for more than is stored of it: it could fill a disk with
// nothing.
func sparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// split cuts a clean relative name into its folder and its last part.
func split(clean string) (folder, name string) {
	i := strings.LastIndexByte(clean, '/')
	return clean[:max(i, 0)], clean[i+1:]
}
