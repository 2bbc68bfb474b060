package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/alecthomas/kong"
)

// versionFlag is the flag --version, which does what the command does.
type versionFlag bool

// BeforeReset prints the version and ends the program.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	_, err := fmt.Fprint(app.Stdout, versionText())
	app.Exit(exitOK)
	return err
}

func versionText() string {
	return fmt.Sprintf("gantry %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run(a *app) error {
	text, err := json.Marshal(map[string]string{"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
	if err != nil {
		return err
	}
	return a.show(text, versionText)
}
