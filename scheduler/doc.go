// Package scheduler is the control plane's service: what the public faces call. It checks what a
// request means, picks hosts on a view and proposes the change; the state machine decides. It holds
// no state of its own but when keys were last used, until that is recorded, and what is live of the
// hosts, which dispatch keeps.
package scheduler
