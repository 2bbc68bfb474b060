package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sortRows sorts the rows below the heading by the column of that name, in any case; -NAME sorts the other way round. No
// name leaves them as they are.
func sortRows(rows [][]string, by string) error {
	name, falls := strings.CutPrefix(by, "-")
	if name == "" {
		return nil
	}
	bare := func(s string) string { return strings.TrimPrefix(s, "~") }
	column := slices.IndexFunc(rows[0], func(h string) bool { return strings.EqualFold(bare(h), name) })
	if column < 0 {
		var known []string
		for _, h := range rows[0] {
			known = append(known, bare(h))
		}
		return usage("--sort-by must be one of the columns %s", strings.Join(known, ", "))
	}
	slices.SortStableFunc(rows[1:], func(x, y []string) int {
		order := compareCells(x[column], y[column])
		if falls {
			order = -order
		}
		return order
	})
	return nil
}

// compareCells orders amounts by what they are worth and all else as text; amounts come first.
func compareCells(x, y string) int {
	a, isA := amount(x)
	b, isB := amount(y)
	switch {
	case isA && isB:
		return cmp.Compare(a, b)
	case isA:
		return -1
	case isB:
		return 1
	}
	return strings.Compare(x, y)
}

// units are how much more one of them is than the smallest.
var units = map[string]float64{
	"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "vCPU": 1, "cores": 1,
}

// amount reads what tables show: $0.060, 20 GB, 9.4/24 GB, 1m30s, 3d.
func amount(cell string) (float64, bool) {
	number, unit, _ := strings.Cut(strings.Replace(cell, "$", "", 1), " ")
	number, _, _ = strings.Cut(number, "/")
	if n, err := strconv.ParseFloat(number, 64); err == nil {
		scale, known := units[unit]
		return n * scale, known
	}
	if days, ok := strings.CutSuffix(number, "d"); ok {
		n, err := strconv.Atoi(days)
		return float64(n) * 24 * float64(time.Hour), err == nil
	}
	d, err := time.ParseDuration(number)
	return float64(d), err == nil
}
