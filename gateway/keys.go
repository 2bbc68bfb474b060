package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

const (
	keyGood    = 10 * time.Second // a key that was good counts so long without a question,
	keyAlone   = time.Minute      // and so long while no scheduler answers
	keyBad     = 2 * time.Second  // the same of one that was refused
	keysKept   = 1 << 16          // of either kind
	keysAsked  = 256              // questions at a time
	askTimeout = 5 * time.Second
)

// keys remembers for a short time what schedulers said of keys. It holds no key: only hashes under a key of this process, of which
// nothing can be told without it.
type keys struct {
	ask     func(ctx context.Context, q *agentrpc.KeyQuestion) (*agentrpc.KeyAnswer, error)
	now     func() time.Time
	hashKey [sha256.Size]byte
	asking  *semaphore.Weighted
	flights singleflight.Group

	mu        sync.Mutex // guards the fields below
	good, bad kept
}

type (
	keyHash [sha256.Size]byte
	verdict struct {
		answer *agentrpc.KeyAnswer
		at     time.Time
	}
)

// kept are verdicts in two generations, of which the older is dropped when the younger is full.
type kept struct{ young, old map[keyHash]verdict }

func (k *kept) get(h keyHash) (verdict, bool) {
	v, ok := k.young[h]
	if !ok {
		v, ok = k.old[h]
	}
	return v, ok
}

func (k *kept) put(h keyHash, v verdict) {
	if len(k.young) >= keysKept/2 || k.young == nil {
		k.old, k.young = k.young, map[keyHash]verdict{}
	}
	k.young[h] = v
}

func newKeys(ask func(context.Context, *agentrpc.KeyQuestion) (*agentrpc.KeyAnswer, error)) *keys {
	k := &keys{ask: ask, now: time.Now, asking: semaphore.NewWeighted(keysAsked)}
	_, _ = rand.Read(k.hashKey[:]) // never returns an error
	return k
}

func (k *keys) hash(q *agentrpc.KeyQuestion) (out keyHash) {
	mac := hmac.New(sha256.New, k.hashKey[:])
	_, _ = fmt.Fprintf(mac, "%q %q %d %v %q", q.GetEndpointId(), q.GetPodId(), q.GetPort(), q.GetWho(), q.GetKey())
	return keyHash(mac.Sum(out[:0]))
}

// known returns what is remembered of a question, and whether it still counts without asking.
func (k *keys) known(h keyHash) (v verdict, fresh bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if v, ok := k.good.get(h); ok {
		return v, k.now().Sub(v.at) < keyGood
	}
	v, ok := k.bad.get(h)
	return v, ok && k.now().Sub(v.at) < keyBad
}

// may refuses a request with a key. Errors: what a scheduler says, unavailable.
func (k *keys) may(ctx context.Context, q *agentrpc.KeyQuestion) error {
	_, err := k.answer(ctx, q)
	return err
}

// who returns whose key it is. Errors: as may's.
func (k *keys) who(ctx context.Context, key fleet.Secret) (fleet.Principal, error) {
	answer, err := k.answer(ctx, &agentrpc.KeyQuestion{Key: key.Reveal(), Who: true})
	h := answer.GetHolder()
	if err == nil && h == nil {
		err = fleet.Unavailable("the scheduler that answers cannot tell whose key it is", nil)
	}
	return fleet.Principal{
		Account: fleet.AccountID(h.GetAccountId()), Can: map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.Access(h.GetPods())},
		Quotas: &fleet.Quotas{Minute: int(h.GetMinute()), Hour: int(h.GetHour()), Day: int(h.GetDay())},
	}, err
}

func (k *keys) answer(ctx context.Context, q *agentrpc.KeyQuestion) (*agentrpc.KeyAnswer, error) {
	h := k.hash(q)
	v, fresh := k.known(h)
	if !fresh {
		answer, err, _ := k.flights.Do(string(h[:]), func() (any, error) { return k.find(ctx, h, q) })
		switch last := v.answer; {
		case err == nil:
			v.answer = answer.(*agentrpc.KeyAnswer)
		case last == nil || last.GetCode() != "" || k.now().Sub(v.at) > keyAlone:
			return nil, fleet.Unavailable("the key cannot be checked at the moment; try again", err)
		}
	}
	return v.answer, refusal(v.answer)
}

// refusal is why a scheduler says no; nil: it does not.
func refusal(answer *agentrpc.KeyAnswer) error {
	if code := answer.GetCode(); code != "" {
		return &fleet.Error{Code: fleet.Code(code), Msg: answer.GetText()}
	}
	return nil
}

// find asks a scheduler.
func (k *keys) find(ctx context.Context, h keyHash, q *agentrpc.KeyQuestion) (*agentrpc.KeyAnswer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout) // others may wait for the same answer
	defer cancel()
	if err := k.asking.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer k.asking.Release(1)
	answer, err := k.ask(ctx, q)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	v := verdict{answer, k.now()}
	if answer.GetCode() == "" {
		k.good.put(h, v)
		return answer, nil
	}
	delete(k.good.young, h)
	delete(k.good.old, h)
	k.bad.put(h, v)
	return answer, nil
}
