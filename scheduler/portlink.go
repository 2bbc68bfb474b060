package scheduler

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// purposePortLink is the purpose of the MAC of a link.
const purposePortLink = "port link"

// LinkPort returns a pod and a token that opens one of its http ports until a moment. It is stored nowhere, and ends with its time or
// with its pod. Errors: not_found, rule.
func (s *Service) LinkPort(ctx context.Context, who fleet.Principal, id fleet.PodID, port int, life time.Duration) (fleet.PodView, fleet.Secret, time.Time, error) {
	view, err := s.Pod(ctx, who, id)
	if err == nil && !slices.Contains(view.Pod.Spec.Ports, fleet.Port{Number: port, Protocol: "http"}) {
		err = fleet.BreaksRule("port is no http port of the pod")
	}
	if err != nil {
		return fleet.PodView{}, "", time.Time{}, err
	}
	until := s.Now().Add(life).Truncate(time.Second)
	token, err := s.linkToken(id, port, strconv.FormatInt(until.Unix(), 10))
	return view, token, until, err
}

func (s *Service) linkToken(id fleet.PodID, port int, until string) (fleet.Secret, error) {
	mac, err := s.Sealer.MAC(purposePortLink, fmt.Appendf(nil, "%s %d %s", id, port, until))
	if err != nil {
		return "", err
	}
	return fleet.Secret(until + "." + base64.RawURLEncoding.EncodeToString(mac[:])), nil
}

// OpensPort reports whether a key of the pod's account that may change pods, or the token of a link, lets requests pass to a port. It
// asks no other scheduler: a key that was made or ended a moment ago may count as it was.
func (s *Service) OpensPort(_ context.Context, id fleet.PodID, port int, credential fleet.Secret) bool {
	if text, _, link := strings.Cut(credential.Reveal(), "."); link {
		until, err := strconv.ParseInt(text, 10, 64)
		if err != nil || s.Now().Unix() >= until {
			return false
		}
		want, err := s.linkToken(id, port, text)
		return err == nil && subtle.ConstantTimeCompare([]byte(want.Reveal()), []byte(credential.Reveal())) == 1
	}
	who, ok := s.KnownKey(credential)
	if !ok || who.Pod != "" || !who.May(fleet.GroupPods, fleet.AccessWrite) {
		return false
	}
	err := s.Store.View(func(v *state.View) error {
		_, err := podOf(v, who, id)
		return err
	})
	return err == nil
}
