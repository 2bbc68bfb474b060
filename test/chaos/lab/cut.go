package lab

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Deaf makes p receive nothing from the others; what it sends still arrives.
func (p *Place) Deaf(others ...*Place) error {
	return p.rules("input", "saddr", others)
}

// Mute makes nothing that p sends arrive at the others; it still receives.
func (p *Place) Mute(others ...*Place) error {
	return p.rules("output", "daddr", others)
}

// Cut ends all traffic between p and the others.
func (p *Place) Cut(others ...*Place) error {
	if err := p.Deaf(others...); err != nil {
		return err
	}
	return p.Mute(others...)
}

// Lossy drops so many packets of a hundred that reach p from anywhere.
func (p *Place) Lossy(percent int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut[fmt.Sprintf("add rule inet chaos input numgen random mod 100 < %d drop", percent)] = true
	return p.load()
}

// Split cuts the groups off from each other; within a group all goes on.
func Split(groups ...[]*Place) error {
	for i, group := range groups {
		for j, other := range groups {
			if i == j {
				continue
			}
			for _, p := range group {
				if err := p.Cut(other...); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// HealAll ends every cut of every place.
func (l *Lab) HealAll() error {
	l.mu.Lock()
	places := slices.Clone(l.places)
	l.mu.Unlock()
	for _, p := range places {
		if err := p.Heal(); err != nil {
			return err
		}
	}
	return nil
}

// Heal ends every cut that was made at p.
func (p *Place) Heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.cut) == 0 {
		return nil
	}
	p.cut = map[string]bool{}
	return p.load()
}

func (p *Place) rules(chain, side string, others []*Place) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range others {
		p.cut[fmt.Sprintf("add rule inet chaos %s ip %s %s drop", chain, side, o.Addr)] = true
	}
	return p.load()
}

// load replaces the table by what holds now, in one transaction; p.mu is held.
func (p *Place) load() error {
	lines := []string{"add table inet chaos", "delete table inet chaos"}
	if len(p.cut) > 0 {
		lines = append(
			lines, "add table inet chaos",
			"add chain inet chaos input { type filter hook input priority -300; }",
			"add chain inet chaos output { type filter hook output priority -300; }",
		)
		lines = append(lines, slices.Sorted(maps.Keys(p.cut))...)
	}
	return p.shell(strings.Join(lines, "\n")+"\n", "nft", "-f", "-")
}
