//go:build !faultpoints

package faultpoint

// Hit is a point with this name.
func Hit(string) {}

// Before is the point before something: KIND.NAME.before.
func Before(string, string) {}

// After is the point after something: KIND.NAME.after.
func After(string, string) {}
