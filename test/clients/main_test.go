// Package clients drives real servers, as gantry dev starts them, with public clients that were not
// written for Gantry. It needs root, the binaries in bin/ and the clients that scripts/clients.sh installs.
package clients

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gantry/test/devtest"
)

const reachTimeout = 90 * time.Second

// suite is what all tests share: one gantry dev.
var suite struct {
	site *devtest.Site
	dev  *devtest.Dev
	info devtest.Info
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	fail := func(err error) int { fmt.Fprintln(os.Stderr, "clients:", err); return 1 }
	var err error
	if suite.site, err = devtest.NewSite(); err != nil {
		return fail(err)
	}
	defer func() {
		if err := suite.site.Remove(); err != nil {
			code = fail(err)
		}
	}()
	if suite.dev, err = suite.site.Start(filepath.Join(suite.site.Dir, "dev")); err != nil {
		return fail(err)
	}
	if suite.info, err = suite.dev.Info(); err != nil {
		return fail(err)
	}
	code = m.Run()
	if err := suite.dev.Stop(); err != nil {
		code = fail(err)
	}
	if err := secretsInLogs(suite.info.APIKey, suite.info.AdminKey, registryPassword, registryUser); err != nil {
		code = fail(err)
	}
	if code != 0 {
		suite.dev.PrintLogs(os.Stderr)
	}
	return code
}

// secretsInLogs looks through every log of the daemons for what the tests told them in confidence.
func secretsInLogs(secrets ...string) error {
	files, err := filepath.Glob(filepath.Join(suite.dev.Dir, "log", "*"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("%d logs: %w", len(files), err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, secret := range secrets {
			if bytes.Contains(data, []byte(secret)) {
				return fmt.Errorf("%s holds a secret", filepath.Base(name))
			}
		}
	}
	return nil
}
