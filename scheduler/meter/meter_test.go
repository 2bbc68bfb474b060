package meter

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
)

// model is F by its definition, in numbers without bounds.
func model(rate fleet.Money, seconds int64) fleet.Money {
	if rate <= 0 || seconds <= 0 {
		return 0
	}
	out := new(big.Int).Mul(big.NewInt(int64(rate)), big.NewInt(seconds))
	out.Quo(out, big.NewInt(3600))
	if out.Cmp(big.NewInt(int64(MaxCharge))) > 0 {
		return MaxCharge
	}
	return fleet.Money(out.Int64())
}

func drawInterval(t *rapid.T) Interval {
	rate := rapid.Custom(func(t *rapid.T) fleet.Money {
		return fleet.Money(rapid.OneOf(rapid.Int64Range(0, 10), rapid.Int64Range(-5, 1e13), rapid.Just(int64(math.MaxInt64))).Draw(t, "rate"))
	})
	return Interval{
		Begin: rapid.Int64Range(0, 1e10).Draw(t, "begin"),
		Rates: fleet.Amounts{
			GPU: rate.Draw(t, "gpu"), CPU: rate.Draw(t, "cpu"), Disk: rate.Draw(t, "disk"),
			Standard: rate.Draw(t, "standard"), Fast: rate.Draw(t, "fast"),
		},
	}
}

func TestCostIsTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		iv := drawInterval(t)
		x := rapid.OneOf(rapid.Int64Range(-10, 10_000), rapid.Int64Range(0, 1e10)).Draw(t, "seconds")
		got := iv.Cost(iv.Begin + x)
		want := fleet.Amounts{
			GPU: model(iv.Rates.GPU, x), CPU: model(iv.Rates.CPU, x), Disk: model(iv.Rates.Disk, x),
			Standard: model(iv.Rates.Standard, x), Fast: model(iv.Rates.Fast, x),
		}
		if got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
		if got.Total() < 0 {
			t.Fatalf("the sum overflows: %d", got.Total())
		}
	})
}

// However an interval is settled, forth and back, each hour has what it would have had at once.
func TestPiecesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		iv := drawInterval(t)
		point := rapid.Int64Range(iv.Begin-5000, iv.Begin+100_000)
		settled, hours := iv.Begin, map[int64]fleet.Amounts{}
		for range rapid.IntRange(1, 10).Draw(t, "pieces") {
			next := max(point.Draw(t, "point"), iv.Begin)
			var sum fleet.Amounts
			last := int64(-1)
			for hour, amounts := range iv.Hours(settled, next) {
				if hour <= last {
					t.Fatalf("hour %d after hour %d", hour, last)
				}
				last = hour
				if amounts.Total() == 0 || (amounts.Total() < 0) != (next < settled) {
					t.Fatalf("from %d to %d: hour %d has %+v", settled, next, hour, amounts)
				}
				sum, hours[hour] = sum.Plus(amounts), hours[hour].Plus(amounts)
			}
			if want := iv.Part(settled, next); sum != want {
				t.Fatalf("hours sum up to %+v, want %+v", sum, want)
			}
			settled = next
		}
		want := map[int64]fleet.Amounts{}
		for hour, amounts := range iv.Hours(iv.Begin, settled) {
			want[hour] = amounts
		}
		for hour, amounts := range hours {
			if amounts != want[hour] {
				t.Fatalf("hour %d has %+v, at once it has %+v", hour, amounts, want[hour])
			}
		}
		if got := iv.Part(iv.Begin, settled); got != iv.Cost(settled) {
			t.Fatalf("got %+v, want %+v", got, iv.Cost(settled))
		}
	})
}

func TestHoursAreCutAtFullHours(t *testing.T) {
	// One dollar an hour from half past ten to a quarter past twelve.
	iv := Interval{Begin: Seconds(time.Date(2026, 3, 1, 10, 30, 0, 999, time.UTC)), Rates: fleet.Amounts{GPU: fleet.Dollar}}
	end := Seconds(time.Date(2026, 3, 1, 12, 15, 0, 0, time.UTC))
	got := map[string]fleet.Money{}
	for hour, amounts := range iv.Hours(iv.Begin, end) {
		got[HourTime(hour).Format("15:04")] = amounts.GPU
	}
	if len(got) != 3 || got["10:00"] != fleet.Dollar/2 || got["11:00"] != fleet.Dollar || got["12:00"] != fleet.Dollar/4 {
		t.Errorf("got %v", got)
	}
	for range iv.Hours(iv.Begin, end) {
		break // a reader may stop
	}
}

func TestHoursAreBounded(t *testing.T) {
	iv := Interval{Begin: 0, Rates: fleet.Amounts{CPU: 7}}
	end := Seconds(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
	for _, span := range [][2]int64{{0, end}, {end, 0}} {
		n, sum := 0, fleet.Amounts{}
		for _, amounts := range iv.Hours(span[0], span[1]) {
			n, sum = n+1, sum.Plus(amounts)
		}
		if n != MaxHours || sum != iv.Part(span[0], span[1]) {
			t.Errorf("%d hours, %+v", n, sum)
		}
	}
}

func TestSeconds(t *testing.T) {
	for _, c := range []struct {
		at   time.Time
		want int64
	}{
		{time.Unix(100, 999_999_999), 100},
		{time.Unix(-1, 0), 0},
		{time.Time{}, 0},
		{time.Date(10_001, 1, 1, 0, 0, 0, 0, time.UTC), maxSecond},
	} {
		if got := Seconds(c.at); got != c.want {
			t.Errorf("%s: got %d, want %d", c.at, got, c.want)
		}
	}
}

func TestRates(t *testing.T) {
	prices := &fleet.StoragePrices{
		ContainerDisk: fleet.Dollar / 10, PersistentRunning: fleet.Dollar / 10, PersistentStopped: fleet.Dollar / 5,
		VolumeFirst: 70_000_000, VolumeBeyond: 50_000_000, FastFirst: 140_000_000, FastBeyond: 100_000_000,
	}
	absurd := &fleet.StoragePrices{FastFirst: 1, FastBeyond: math.MaxInt64}
	gpu := &fleet.PodSpec{DiskGB: 20, GPU: &fleet.GPURequest{}, Persistent: &fleet.PersistentMount{SizeGB: 73}}
	cpu := &fleet.PodSpec{DiskGB: 20, CPU: &fleet.CPURequest{}}
	volume := func(gb int, kind fleet.VolumeType) *fleet.Volume { return &fleet.Volume{SizeGB: gb, Type: kind} }
	for name, c := range map[string]struct{ got, want fleet.Amounts }{
		"GPU pod":       {Running(gpu, 5, prices), fleet.Amounts{GPU: 5, Disk: 2_739_726 + 10_000_000}},
		"CPU pod":       {Running(cpu, 5, prices), fleet.Amounts{CPU: 5, Disk: 2_739_726}},
		"free storage":  {Running(gpu, 5, nil), fleet.Amounts{GPU: 5}},
		"negative":      {Running(cpu, -5, nil), fleet.Amounts{}},
		"stopped":       {Stopped(gpu, prices), fleet.Amounts{Disk: 20_000_000}},
		"keeps nothing": {Stopped(cpu, prices), fleet.Amounts{}},
		"stopped, free": {Stopped(gpu, nil), fleet.Amounts{}},
		"volume":        {Volume(volume(1000, fleet.VolumeStandard), prices), fleet.Amounts{Standard: 95_890_411}},
		"large volume":  {Volume(volume(1073, fleet.VolumeStandard), prices), fleet.Amounts{Standard: 95_890_411 + 5_000_000}},
		"fast volume":   {Volume(volume(1073, fleet.VolumeFast), prices), fleet.Amounts{Fast: 191_780_822 + 10_000_000}},
		"free volume":   {Volume(volume(1073, fleet.VolumeFast), nil), fleet.Amounts{}},
		"beyond money":  {Volume(volume(math.MaxInt, fleet.VolumeFast), absurd), fleet.Amounts{Fast: MaxCharge + 1}},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, c.got, c.want)
		}
	}
}
