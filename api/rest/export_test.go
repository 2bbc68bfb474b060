package rest

import "time"

// Begin makes an API as a new one of cfg, which is valid, but for its routes and its document: those are the same for every
// configuration of one version, and making them takes far longer than a test's own requests. Nothing may be under way.
func (a *API) Begin(cfg Config) { a.begin(cfg) }

// SetMeasure sets the time between measures of a pod. Nothing may be open.
func (a *API) SetMeasure(every time.Duration) { a.pace.measure = every }

// SetPing sets the time between two signs of life of what stays open. Nothing may be open.
func (a *API) SetPing(every time.Duration) { a.pace.ping = every }

// SetAgain sets how long it takes until who follows a log or runs a program is asked for again. Nothing may be open.
func (a *API) SetAgain(every time.Duration) { a.pace.again = every }
