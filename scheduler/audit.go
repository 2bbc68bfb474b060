package scheduler

import (
	"cmp"
	"context"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// Audit returns lines of the audit log, newest first. The caller has found that they may be read. Errors: unavailable.
func (s *Service) Audit(ctx context.Context, q fleet.AuditQuery) (fleet.AuditPage, error) {
	if err := s.Node.Barrier(ctx); err != nil {
		return fleet.AuditPage{}, err
	}
	return s.Store.Audit(q)
}

// NoteAudit records the line of the request, unless it has none or it is on record: where no command changed anything.
func (s *Service) NoteAudit(ctx context.Context) error {
	audit := fleet.AuditOf(ctx)
	if !audit.Pending() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	res, err := s.Node.Propose(ctx, state.RecordAudit{Line: s.auditLine(audit.Line, nil)})
	if err != nil {
		return err
	}
	audit.Recorded()
	return res[0].Err
}

// NoteWrite records that the holder of a key writes files into a pod, which a gateway does then. Errors: what the write would be
// refused with, unavailable.
func (s *Service) NoteWrite(ctx context.Context, key fleet.Secret, id fleet.PodID, address string) error {
	who, err := s.Authenticate(ctx, key)
	if err != nil {
		return err
	}
	if who.Pod != "" || !who.May(fleet.GroupPods, fleet.AccessWrite) {
		return fleet.Forbidden("this key may not write files of pods")
	}
	if _, err := s.running(ctx, who, id); err != nil {
		return err
	}
	return s.NoteAudit(fleet.WithAudit(ctx, fleet.AuditLine{
		Account: who.Account, Key: cmp.Or(string(who.Session), string(who.Key)), Person: who.Person, Face: "v2", Operation: "writePodFiles",
		Object: string(id), Address: address, Status: 204,
	}))
}

// auditLine completes the line of a request: the time, the name of its key, and what its command makes.
func (s *Service) auditLine(line fleet.AuditLine, cmd state.Command) fleet.AuditLine {
	line.At, line.Object = s.Now(), cmp.Or(line.Object, state.Subject(cmd))
	_ = s.Store.View(func(v *state.View) error { // a closed store has none
		if key, ok := v.Key(fleet.KeyID(line.Key)); ok {
			line.KeyName, line.Person = key.Name, key.Person
		} else if p, ok := v.Person(line.Person); ok {
			line.KeyName = p.Login
		}
		return nil
	})
	return line
}
