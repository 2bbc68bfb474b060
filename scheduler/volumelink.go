package scheduler

import (
	"context"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/internal/objects"
)

const (
	purposeLinkKey    = "volume link key"    // of the MAC in an access key
	purposeLinkSecret = "volume link secret" // of the MAC that is its secret
	linkKeyEvery      = 5 * time.Minute      // links that end in the same of these have one access key, so that hosts ask of few
	linkPrefix        = "link"
	maxObjectKey      = 1024 // bytes
	pageOfFiles       = "1000"
)

// LinkVolume returns an address at the S3 server of a volume's data center that does one thing with one of its files, for whoever has
// it, until a moment. It is stored nowhere, and ends with its time, the volume, or a suspension of the account; not with the key that
// made it. Errors: not_found, forbidden, invalid, rule (the data center has no S3 server that is known).
func (s *Service) LinkVolume(ctx context.Context, who fleet.Principal, id fleet.VolumeID, q fleet.VolumeLinkRequest) (fleet.VolumeLink, error) {
	change := q.Act == fleet.LinkPut || q.Act == fleet.LinkDelete
	if change && !who.May(fleet.GroupS3, fleet.AccessWrite) {
		return fleet.VolumeLink{}, fleet.Forbidden("this key lacks s3:write")
	}
	view, err := s.Volume(ctx, who, id)
	if err != nil {
		return fleet.VolumeLink{}, err
	}
	if !goodObjectKey(q.Key, q.Act == fleet.LinkList) {
		return fleet.VolumeLink{}, fleet.Invalid("query.key", "must be a path in the volume, without empty, '.' and '..' parts, of at most 1024 bytes")
	}
	endpoint := s.S3URLs[strings.ToLower(string(view.Volume.DataCenter))]
	if endpoint == "" {
		return fleet.VolumeLink{}, fleet.BreaksRule("the schedulers know no S3 server of the data center %s: their operator names it with --s3-url", view.Volume.DataCenter)
	}
	now := s.Now()
	grant := fleet.VolumeGrant{Account: who.Account, Volume: id, ReadOnly: !change, ExpiresAt: now.Add(q.Life).Truncate(linkKeyEvery).Add(linkKeyEvery)}
	access, secret, err := s.grantKey(&grant)
	if err != nil {
		return fleet.VolumeLink{}, err
	}
	bucket := objects.Bucket{Endpoint: endpoint, Region: string(view.Volume.DataCenter), Name: string(id), AccessKey: access, Secret: secret}
	method, name, query := "GET", q.Key, url.Values{}
	switch q.Act {
	case fleet.LinkPut:
		method = "PUT"
	case fleet.LinkDelete:
		method = "DELETE"
	case fleet.LinkList:
		name, query = "", url.Values{"list-type": {"2"}, "delimiter": {"/"}, "encoding-type": {"url"}, "max-keys": {pageOfFiles}, "prefix": {q.Key}}
		if q.Cursor != "" {
			query.Set("continuation-token", q.Cursor)
		}
	}
	return fleet.VolumeLink{Method: method, URL: fleet.Secret(bucket.Link(method, name, query, now, q.Life)), ExpiresAt: now.Add(q.Life)}, nil
}

// goodObjectKey reports whether a path leads into the volume, whoever reads it: a browser takes "." and ".." out of an address.
func goodObjectKey(key string, folder bool) bool {
	if key == "" {
		return folder
	}
	if len(key) > maxObjectKey || strings.ContainsRune(key, 0) || folder && !strings.HasSuffix(key, "/") {
		return false
	}
	return !slices.ContainsFunc(strings.Split(strings.TrimSuffix(key, "/"), "/"), func(part string) bool { return part == "" || part == "." || part == ".." })
}

// grantKey makes the access key of a grant, which says all of it, and its secret. Nobody else can make either.
func (s *Service) grantKey(g *fleet.VolumeGrant) (access string, secret fleet.Secret, err error) {
	mode := "w"
	if g.ReadOnly {
		mode = "r"
	}
	text := strings.Join([]string{linkPrefix, string(g.Account), string(g.Volume), mode, strconv.FormatInt(g.ExpiresAt.Unix(), 36)}, ".")
	mac, err := s.Sealer.MAC(purposeLinkKey, []byte(text))
	if err != nil {
		return "", "", err
	}
	access = text + "." + strings.ToLower(base32.StdEncoding.EncodeToString(mac[:10]))
	if mac, err = s.Sealer.MAC(purposeLinkSecret, []byte(access)); err != nil {
		return "", "", err
	}
	return access, fleet.Secret(hex.EncodeToString(mac[:])), nil
}

// VolumeGrant returns what an access key of LinkVolume may do, with its secret; false for all others.
func (s *Service) VolumeGrant(access string) (fleet.VolumeGrant, bool) {
	parts := strings.Split(access, ".")
	if len(parts) != 6 || parts[0] != linkPrefix {
		return fleet.VolumeGrant{}, false
	}
	until, err := strconv.ParseInt(parts[4], 36, 64)
	if err != nil {
		return fleet.VolumeGrant{}, false
	}
	g := fleet.VolumeGrant{Account: fleet.AccountID(parts[1]), Volume: fleet.VolumeID(parts[2]), ReadOnly: parts[3] == "r", ExpiresAt: time.Unix(until, 0)}
	want, secret, err := s.grantKey(&g)
	g.Secret = secret
	return g, err == nil && subtle.ConstantTimeCompare([]byte(want), []byte(access)) == 1
}
