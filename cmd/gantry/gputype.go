package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
)

// withGPU calls place, and once more when the API does not know the GPU type and the catalog has one that is meant.
func (a *app) withGPU(ctx context.Context, c *client.Client, body *v2.CreatePodRequest, place func() error) error {
	err := place()
	var problem *client.Problem
	if body.GPU == nil || !errors.As(err, &problem) ||
		!slices.ContainsFunc(problem.Errors, func(e string) bool { return strings.HasPrefix(e, "$.gpu.id: ") }) {
		return err
	}
	list, listErr := c.GPUs(ctx, client.GPUQuery{Count: body.GPU.Count})
	if listErr != nil {
		return err
	}
	id, err := gpuType(list.Value.GPUs, body.GPU.ID)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(a.err, "GPU type %s\n", printable(id))
	body.GPU.ID = id
	return place()
}

// gpuType returns the id of the type that text means. Of several it is the only one that is free.
func gpuType(all []v2.GPUType, text string) (string, error) {
	var names []string
	ids := map[string]v2.GPUType{}
	for _, g := range all {
		for _, name := range []string{g.ID, g.Name} {
			if strings.EqualFold(name, text) {
				return g.ID, nil
			}
			if name != "" {
				names, ids[name] = append(names, name), g
			}
		}
	}
	var meant, free []string
	for _, name := range fleet.Similar(text, names) {
		if g := ids[name]; !slices.Contains(meant, g.ID) {
			meant = append(meant, g.ID)
			if g.Availability != "" && g.Availability != "NONE" {
				free = append(free, g.ID)
			}
		}
	}
	within := slices.ContainsFunc(meant, func(id string) bool { // else it is only like them
		return strings.Contains(strings.ToLower(id+" "+ids[id].Name), strings.ToLower(text))
	})
	switch {
	case within && len(meant) == 1:
		return meant[0], nil
	case within && len(free) == 1:
		return free[0], nil
	case within:
		return "", usage("--gpu: several GPU types have this in their names; did you mean \"%s\"?", strings.Join(meant, `" or "`))
	case len(meant) == 0:
		return "", usage("--gpu: no GPU type has this name: see gantry catalog gpus --free")
	}
	return "", usage("--gpu: no GPU type has this name; did you mean \"%s\"?", strings.Join(meant, `" or "`))
}

// gpuTypesOf returns the ids of the types that texts mean, which may be several each: all that have it in their names. Without a catalog
// they are taken as they are.
func gpuTypesOf(ctx context.Context, c *client.Client, texts []string) ([]string, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	list, err := c.GPUs(ctx, client.GPUQuery{})
	if err != nil || len(list.Value.GPUs) == 0 {
		return texts, nil //nolint:nilerr // the list of pods tells what is wrong
	}
	var ids []string
	for _, text := range texts {
		var exact, within []string
		for _, g := range list.Value.GPUs {
			if strings.EqualFold(g.ID, text) || strings.EqualFold(g.Name, text) {
				exact = append(exact, g.ID)
			} else if strings.Contains(strings.ToLower(g.ID+"\n"+g.Name), strings.ToLower(text)) {
				within = append(within, g.ID)
			}
		}
		if len(exact) == 0 {
			exact = within
		}
		if len(exact) == 0 {
			id, err := gpuType(list.Value.GPUs, text) // says which are like it
			if err != nil {
				return nil, err
			}
			exact = []string{id}
		}
		ids = append(ids, exact...)
	}
	return ids, nil
}
