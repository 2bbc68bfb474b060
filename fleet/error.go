package fleet

import (
	"errors"
	"fmt"
	"time"
)

// Code classes an error for the one who must react to it. Codes are part of the public contract
// (problem bodies carry them); a code is never renamed.
type Code string

// The codes.
const (
	CodeInvalid      Code = "invalid"        // a value breaks its own rule: 422
	CodeConflictRule Code = "rule"           // values break a rule between them: 400
	CodeMalformed    Code = "malformed"      // the request cannot be read: 400
	CodeUnauthorized Code = "unauthorized"   // no usable credential: 401
	CodeNoCredit     Code = "low_balance"    // the balance does not cover one hour: 402
	CodeForbidden    Code = "forbidden"      // the credential lacks the permission: 403
	CodeNotFound     Code = "not_found"      // not there, or not the caller's: 404
	CodeNotAllowed   Code = "not_allowed"    // not in this state: 409
	CodeNoCapacity   Code = "no_capacity"    // no room now: 400
	CodeInUse        Code = "in_use"         // other things refer to it: 400
	CodeStale        Code = "stale"          // decided on an old view: decide again
	CodeExists       Code = "exists"         // already there: 409
	CodeUnavailable  Code = "unavailable"    // outcome unknown or no leader: 503
	CodeLimited      Code = "rate_limited"   // 429
	CodeTooLarge     Code = "too_large"      // 413
	CodeMediaType    Code = "media_type"     // 415
	CodeMethod       Code = "method"         // 405
	CodeInternal     Code = "internal"       // a fault of ours: 500
	CodeTooMany      Code = "too_many"       // a list is too long for one answer: 400
	CodeQuota        Code = "quota_exceeded" // the account has as much as it may: 403

	CodeSuspended  Code = "account_suspended" // an operator suspended the account: 403
	CodeSpendLimit Code = "spend_limit"       // the account lets itself spend no more per hour: 402
)

// Error is an error that a user may see. Msg is for the user and holds no secret and no submitted
// value; Err is for the log. Details lists single failures, each with the path and the rule.
type Error struct {
	Code     Code
	Msg      string
	Details  []string
	Excluded []Exclusion
	Err      error
	// NothingDone says that the refusal came before anything was done; the same request may be tried again at once.
	NothingDone bool
	// After is for how long the same request is refused again; 0: as its code says.
	After time.Duration
}

// Exclusion tells how many hosts a placement rule refused, and why.
type Exclusion struct {
	Reason string `json:"reason"`
	Hosts  int    `json:"hosts"`
}

// Error returns the user's message and, where there is one, the cause.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Msg + ": " + e.Err.Error()
	}
	return e.Msg
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// RefusedForNow reports whether a start was refused for lack of room or money, by a limit of the account or by a rule: what
// time, the owner or an operator may change, so that whoever starts things by themselves tries again later.
func RefusedForNow(err error) bool {
	switch CodeOf(err) {
	case CodeNoCapacity, CodeNoCredit, CodeSpendLimit, CodeQuota, CodeConflictRule:
		return true
	}
	return false
}

// NotFound says that a thing of this kind does not exist for the caller. "Not yours" and "not
// there" are the same answer.
func NotFound(kind string) error { return &Error{Code: CodeNotFound, Msg: kind + " not found"} }

// ErrKeyEnded says that a key is a real one whose time is over.
var ErrKeyEnded = &Error{Code: CodeUnauthorized, Msg: "the key has ended"}

// Forbidden says that the caller lacks a permission, which why names.
func Forbidden(why string) error {
	return &Error{Code: CodeForbidden, Msg: "access denied", Details: []string{why}}
}

// Invalid says that the value at path breaks a rule.
func Invalid(path, rule string) error {
	return &Error{Code: CodeInvalid, Msg: "Request validation failed.", Details: []string{path + ": " + rule}}
}

// BreaksRule says that values, each fine by itself, break a rule between them.
func BreaksRule(format string, args ...any) error {
	return &Error{Code: CodeConflictRule, Msg: fmt.Sprintf(format, args...)}
}

// NoCredit says that an account has less than one hour costs. The message is the public one; how much it takes stands beside it.
func NoCredit(msg string, hourly, balance Money) error {
	const mill = Dollar / 1000
	short := func(m Money) string { // rounded down
		if m < 0 {
			return fmt.Sprintf("-$%.3f", ((-m + mill - 1) / mill * mill).USD())
		}
		return fmt.Sprintf("$%.3f", (m / mill * mill).USD())
	}
	return &Error{Code: CodeNoCredit, Msg: msg, Details: []string{
		fmt.Sprintf("it takes the cost of one hour, %s; the balance is %s", short(hourly+mill-1), short(balance)),
	}}
}

// NotAllowed says that the action is not allowed in the present state.
func NotAllowed(format string, args ...any) error {
	return &Error{Code: CodeNotAllowed, Msg: fmt.Sprintf(format, args...)}
}

// Stale says that the decision was made on a view that has changed since; the caller looks again.
func Stale(what string) error { return &Error{Code: CodeStale, Msg: what} }

// Unavailable says that the request could not be decided, or that its outcome is unknown.
func Unavailable(msg string, cause error) error {
	return &Error{Code: CodeUnavailable, Msg: msg, Err: cause}
}

// NothingDone reports whether the first *Error in err's chain says that nothing was done.
func NothingDone(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.NothingDone
}

// CodeOf returns the code of the first *Error in err's chain, CodeInternal when there is none,
// and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}
