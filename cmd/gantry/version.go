package main

import (
	"encoding/json"
	"fmt"
	"runtime"
)

type versionCmd struct{}

func (versionCmd) Help() string {
	return `Example:

    gantry version`
}

// Run prints the version.
func (versionCmd) Run(a *app) error {
	text, err := json.Marshal(map[string]string{"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
	if err != nil {
		return err
	}
	return a.show(text, func() string {
		return fmt.Sprintf("gantry %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	})
}
