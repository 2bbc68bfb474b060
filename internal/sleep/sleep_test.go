package sleep

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestForWaitsAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := For(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("it ended after %v with %v", time.Since(began), err)
		}
		why := errors.New("no longer needed")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		began = time.Now()
		if err := For(ctx, time.Minute); !errors.Is(err, why) || time.Since(began) != time.Second {
			t.Errorf("it ended after %v with %v", time.Since(began), err)
		}
	})
}

func TestOrEndsWithNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		woken := make(chan struct{}, 1)
		time.AfterFunc(time.Second, func() { woken <- struct{}{} })
		began := time.Now()
		if early, err := Or(t.Context(), time.Minute, woken); !early || err != nil || time.Since(began) != time.Second {
			t.Errorf("it ended after %v: early %v, %v", time.Since(began), early, err)
		}
		if early, err := Or(t.Context(), time.Minute, woken); early || err != nil {
			t.Errorf("nothing woke it: early %v, %v", early, err)
		}
	})
}
