package cmdline

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/pelletier/go-toml/v2"
)

// File is the value of a --config flag. Kong loads it before it sets the other flags.
type File string

// BeforeResolve implements kong's hook: it reads the file and gives its values to the flags.
func (File) BeforeResolve(ctx *kong.Context, trace *kong.Path) error {
	f, ok := ctx.FlagValue(trace.Flag).(File)
	if !ok || f == "" {
		return nil
	}
	data, err := os.ReadFile(string(f))
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	values, err := parseTOML(data)
	if err != nil {
		return fmt.Errorf("%s: %w", string(f), err)
	}
	var flags []string
	for _, flag := range ctx.Flags() {
		flags = append(flags, flag.Name)
	}
	var unknown []string
	for key := range values {
		if !slices.Contains(flags, key) || key == "config" || key == "help" {
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return fmt.Errorf("%s: not a setting of this command: %s", string(f), strings.Join(unknown, ", "))
	}
	ctx.AddResolver(resolver(values))
	return nil
}

func parseTOML(data []byte) (map[string]any, error) {
	values := map[string]any{}
	if err := toml.NewDecoder(bytes.NewReader(data)).Decode(&values); err != nil {
		return nil, err
	}
	for key, value := range values {
		if _, ok := value.(map[string]any); ok {
			return nil, fmt.Errorf("%s: tables are not settings", key)
		}
	}
	return values, nil
}

// resolver returns a flag's value in the form that kong decodes.
func resolver(values map[string]any) kong.Resolver {
	return kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		return values[flag.Name], nil
	})
}
