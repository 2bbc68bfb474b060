package scheduler

import (
	"bytes"
	"context"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/state"
)

func TestTemplates(t *testing.T) {
	w := stocked(t)
	ctx := context.Background()
	once := &fleet.Once{Key: "k", Fingerprint: []byte("one")}
	made, replayed, err := w.svc.CreateTemplate(ctx, member(acme), fleet.Template{
		ID: "chosen", Account: other, Name: "mine", Image: "i:1", Registry: "ours", Source: fleet.SourceOfficial, Rev: 7,
	}, once)
	if err != nil || replayed || made.ID == "chosen" || made.Account != acme || made.Source != "" || made.Category != fleet.CategoryNVIDIA {
		t.Fatalf("%+v %v %v", made, replayed, err)
	}
	again, replayed, err := w.svc.CreateTemplate(ctx, member(acme), fleet.Template{Name: "mine", Image: "i:1"}, once)
	if err != nil || !replayed || again.ID != made.ID {
		t.Errorf("%s %v %v", again.ID, replayed, err)
	}
	_, _, err = w.svc.CreateTemplate(ctx, member(acme), fleet.Template{Name: "x", Image: "i:1", Registry: "theirs"}, nil)
	refused(t, err, fleet.CodeNotFound, "$.registry")
	system := &fleet.PersistentMount{SizeGB: 10, Path: "/etc"}
	_, _, err = w.svc.CreateTemplate(ctx, member(acme), fleet.Template{Name: "x", Image: "i:1", Persistent: system}, nil)
	refused(t, err, fleet.CodeConflictRule, "mounts.persistent.path must not be a system path")
	_, err = w.svc.UpdateTemplate(ctx, member(acme), made.ID, func(t *fleet.Template) { t.Persistent = system })
	refused(t, err, fleet.CodeConflictRule, "mounts.persistent.path must not be a system path")

	got, err := w.svc.UpdateTemplate(ctx, member(acme), made.ID, func(t *fleet.Template) {
		t.Image = "i:2"
		t.Env = map[string]string{"A": "1"}
		t.Registry = fleet.RegistryID("")
		t.Public = true
		t.DiskGB = 5
	})
	if err != nil || got.Image != "i:2" || got.Env["A"] != "1" || got.Registry != "" || !got.Public || got.DiskGB != 5 ||
		got.Name != "mine" || got.Rev <= made.Rev {
		t.Errorf("%+v %v", got, err)
	}
	_, err = w.svc.UpdateTemplate(ctx, member(acme), made.ID, func(t *fleet.Template) { t.Registry = fleet.RegistryID("theirs") })
	refused(t, err, fleet.CodeNotFound, "$.registry")
	_, err = w.svc.UpdateTemplate(ctx, member(acme), "public", func(t *fleet.Template) { t.Name = "x" })
	refused(t, err, fleet.CodeNotFound, "template")
	refused(t, w.svc.DeleteTemplate(ctx, member(acme), "public"), fleet.CodeNotFound, "template")

	if own, err := w.svc.Template(ctx, member(acme), "full"); err != nil || own.Registry != "ours" {
		t.Errorf("own: %+v %v", own, err)
	}
	if public, err := w.svc.Template(ctx, member(acme), "public"); err != nil || public.Registry != "" || public.Image != "full:1" {
		t.Errorf("another's public one: %+v %v", public, err)
	}
	_, err = w.svc.Template(ctx, member(acme), "private")
	refused(t, err, fleet.CodeNotFound, "template")
	if list, err := w.svc.Templates(ctx, member(acme)); err != nil || len(list) != 4 {
		t.Errorf("%d templates, %v", len(list), err)
	}
}

func TestTemplateSources(t *testing.T) {
	w := stocked(t)
	ctx := context.Background()
	listed := func(source fleet.TemplateSource) int {
		t.Helper()
		list, err := w.svc.PublicTemplates(ctx, source)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			if p.Registry != "" || p.ID != "public" {
				t.Errorf("%+v is listed", p)
			}
		}
		return len(list)
	}
	if listed(fleet.SourceCommunity) != 1 || listed(fleet.SourceOfficial) != 0 {
		t.Error("a public template that nobody promoted is a community one")
	}
	if _, err := w.svc.SetTemplateSource(ctx, "public", fleet.SourceOfficial); err != nil {
		t.Fatal(err)
	}
	if listed(fleet.SourceCommunity) != 0 || listed(fleet.SourceOfficial) != 1 {
		t.Error("it is not where the operator put it")
	}
	_, err := w.svc.SetTemplateSource(ctx, "private", fleet.SourceOfficial)
	refused(t, err, fleet.CodeConflictRule, "public")
	_, err = w.svc.SetTemplateSource(ctx, "public", "mine")
	refused(t, err, fleet.CodeInvalid, "$.source")
	if got, err := w.svc.UpdateTemplate(ctx, member(other), "public", func(t *fleet.Template) { t.Public = false }); err != nil || got.Source != "" {
		t.Errorf("not public any more: %q %v", got.Source, err)
	}
}

// TestTemplateOnOldView changes a template between the decision and the command.
func TestTemplateOnOldView(t *testing.T) {
	w := stocked(t)
	w.before = func() {
		if _, err := w.svc.UpdateTemplate(context.Background(), member(acme), "bare", func(t *fleet.Template) { t.Image = "bare:2" }); err != nil {
			t.Error(err)
		}
	}
	got, err := w.svc.UpdateTemplate(context.Background(), member(acme), "bare", func(t *fleet.Template) { t.Args = "serve" })
	if err != nil || got.Image != "bare:2" || got.Args != "serve" {
		t.Errorf("%s %s: %v", got.Image, got.Args, err)
	}
}

func TestRegistries(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	cred := fleet.Credential{Username: "robot-user", Password: "robot-password"}
	once := &fleet.Once{Key: "k", Fingerprint: []byte("one")}
	made, replayed, err := w.svc.CreateRegistry(ctx, member(acme), "hub", cred, once)
	if err != nil || replayed || made.Name != "hub" {
		t.Fatalf("%v %v", replayed, err)
	}
	if again, replayed, err := w.svc.CreateRegistry(ctx, member(acme), "hub", cred, once); err != nil || !replayed || again.ID != made.ID {
		t.Errorf("%v %v", replayed, err)
	}
	if bytes.Contains(made.Sealed, []byte("robot")) {
		t.Error("the record holds the credential in the clear")
	}
	if got, err := w.svc.Credentials(acme, made.ID); err != nil || *got != cred {
		t.Errorf("opened otherwise than sealed: %v", err)
	}
	_, err = w.svc.Credentials(other, made.ID)
	refused(t, err, fleet.CodeNotFound, "registry credential")
	_, err = w.svc.Credentials(acme, "none")
	refused(t, err, fleet.CodeNotFound, "registry credential")
	_, err = w.svc.Registry(ctx, member(other), made.ID)
	refused(t, err, fleet.CodeNotFound, "registry credential")
	refused(t, w.svc.DeleteRegistry(ctx, member(other), made.ID), fleet.CodeNotFound, "registry credential")

	// What is sealed opens in its own record only.
	for name, copied := range map[string]fleet.Registry{
		"another id":      {ID: "another", Account: acme, Sealed: made.Sealed, CreatedAt: begin()},
		"another account": {ID: "stolen", Account: other, Sealed: made.Sealed, CreatedAt: begin()},
	} {
		w.must(state.Put[fleet.Registry]{Record: copied})
		if got, err := w.svc.Credentials(copied.Account, copied.ID); err == nil || got != nil {
			t.Errorf("%s opens what was sealed for %s", name, made.ID)
		}
	}
	if _, err := w.svc.Sealer.Open(sealPurpose(purposeRegistry, other, string(made.ID)), made.Sealed); err == nil {
		t.Error("it opens under the same id of another account")
	}
	if list, err := w.svc.Registries(ctx, member(acme)); err != nil || len(list) != 2 {
		t.Errorf("%d, %v", len(list), err)
	}
	if err := w.svc.DeleteRegistry(ctx, member(acme), made.ID); err != nil {
		t.Error(err)
	}
}

// TestInUse refuses to delete what a pod or a template needs.
func TestInUse(t *testing.T) {
	w := stocked(t)
	ctx := context.Background()
	req := gpuPod(1)
	req.Template, req.Registry = "bare", ptr(fleet.RegistryID("ours-too"))
	pod := w.create(req)
	refused(t, w.svc.DeleteTemplate(ctx, member(acme), "bare"), fleet.CodeInUse, "in use")
	refused(t, w.svc.DeleteRegistry(ctx, member(acme), "ours-too"), fleet.CodeInUse, "in use")
	refused(t, w.svc.DeleteRegistry(ctx, member(acme), "ours"), fleet.CodeInUse, "in use")
	if _, err := w.svc.ActPod(ctx, member(acme), pod.ID, fleet.ActionTerminate); err != nil {
		t.Fatal(err)
	}
	if err := w.svc.DeleteTemplate(ctx, member(acme), "bare"); err != nil {
		t.Error(err)
	}
	if err := w.svc.DeleteRegistry(ctx, member(acme), "ours-too"); err != nil {
		t.Error(err)
	}
}
