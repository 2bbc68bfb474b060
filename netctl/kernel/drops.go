package kernel

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"gantry/netctl"
)

// Drops implements netctl.Controller.
func (c *Controller) Drops(ctx context.Context) ([]netctl.Drop, error) {
	if err := c.gate.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer c.gate.Release(1)
	sums := map[string]netctl.Drop{}
	err := c.rules.exchange(func(conn *nftables.Conn) error {
		return c.rules.eachRule(conn, func(r *nftables.Rule) { count(sums, r) })
	})
	if err != nil {
		return nil, err
	}
	out := make([]netctl.Drop, 0, len(sums))
	for _, d := range sums {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b netctl.Drop) int { return cmp.Compare(a.Why, b.Why) })
	return out, ctx.Err()
}

// count adds what a rule with a reason dropped.
func count(sums map[string]netctl.Drop, r *nftables.Rule) {
	why := reasonOf(r.UserData)
	for _, e := range r.Exprs {
		if counter, ok := e.(*expr.Counter); ok && why != "" {
			d := sums[why]
			d.Why, d.Packets, d.Bytes = why, d.Packets+counter.Packets, d.Bytes+counter.Bytes
			sums[why] = d
		}
	}
}

// reasonOf reads a rule's comment: user data is a list of type, length and value, and a comment is type 0, with a zero at its end.
func reasonOf(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if data[0] == 0 {
			return cString(value)
		}
		data = data[2+len(value):]
	}
	return ""
}

// eachRule reads all rules of the instance.
func (r *ruleset) eachRule(conn *nftables.Conn, f func(*nftables.Rule)) error {
	for _, family := range []nftables.TableFamily{nftables.TableFamilyBridge, nftables.TableFamilyINet} {
		chains, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			return fmt.Errorf("list chains: %w", err)
		}
		for _, c := range chains {
			if c.Table.Name != netctl.TableName(r.instance) {
				continue
			}
			rules, err := conn.GetRules(c.Table, c)
			if err != nil {
				return fmt.Errorf("list rules: %w", err)
			}
			for _, rule := range rules {
				f(rule)
			}
		}
	}
	return nil
}
