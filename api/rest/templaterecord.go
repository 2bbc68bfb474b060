package rest

import (
	"cmp"
	"strconv"

	"gantry/api/v2"
	"gantry/fleet"
)

// The container disk of a template that names none, in GB.
const (
	defaultDiskGPU = 20
	defaultDiskCPU = 10
)

func checkCreateTemplate(in *v2.CreateTemplateRequest) []string {
	return append(append(checkArgs(given(in.Args)), checkPorts(in.Ports)...), checkEnv(in.Env)...)
}

func checkUpdateTemplate(in *v2.UpdateTemplateRequest) []string {
	return append(append(checkArgs(given(in.Args)), checkPorts(in.Ports)...), checkEnv(in.Env)...)
}

// rules checks what single values cannot say. Errors: CodeConflictRule.
func templateMountRules(m *v2.TemplateMounts) error {
	if m == nil || m.Persistent == nil {
		return nil
	}
	return mountPath("mounts.persistent.path", m.Persistent.Path)
}

func templateMount(m *v2.TemplateMounts) *fleet.PersistentMount {
	if m == nil || m.Persistent == nil {
		return nil
	}
	return &fleet.PersistentMount{SizeGB: m.Persistent.Size, Path: m.Persistent.Path}
}

func newTemplate(in *v2.CreateTemplateRequest) fleet.Template {
	return fleet.Template{
		Registry: fleet.RegistryID(given(in.Registry.Value)),
		Name:     in.Name, Image: in.Image, Args: given(in.Args), DiskGB: given(in.Disk), Ports: parsePorts(in.Ports), Env: in.Env, Persistent: templateMount(in.Mounts),
		Serverless: given(in.Serverless), Public: given(in.Public), Category: fleet.Category(cmp.Or(given(in.Category), string(fleet.CategoryNVIDIA))),
		StartSSH: in.StartSSH == nil || *in.StartSSH, StartJupyter: in.StartJupyter == nil || *in.StartJupyter, AllowedCUDA: in.AllowedCUDA,
	}
}

func templateUpdate(in *v2.UpdateTemplateRequest) fleet.TemplateUpdate {
	out := fleet.TemplateUpdate{
		Name: in.Name, Image: in.Image, Args: in.Args, DiskGB: in.Disk, Persistent: templateMount(in.Mounts), Serverless: in.Serverless, Public: in.Public,
		Category: (*fleet.Category)(in.Category), StartSSH: in.StartSSH, StartJupyter: in.StartJupyter, Registry: wantedRegistry(in.Registry),
	}
	if in.Ports != nil {
		ports := parsePorts(in.Ports)
		out.Ports = &ports
	}
	if in.Env != nil {
		out.Env = &in.Env
	}
	if in.AllowedCUDA != nil {
		out.AllowedCUDA = &in.AllowedCUDA
	}
	return out
}

// portTexts shows ports as the API writes them.
func portTexts(ports []fleet.Port) []string {
	out := []string{}
	for _, p := range ports {
		out = append(out, strconv.Itoa(p.Number)+"/"+p.Protocol)
	}
	return out
}

func templateRecord(t fleet.Template) v2.Template {
	out := v2.Template{
		ID: string(t.ID), Name: t.Name, Image: t.Image, Args: t.Args, Disk: t.DiskGB, Ports: portTexts(t.Ports), Env: t.Env, Registry: v2.Text(t.Registry),
		Serverless: t.Serverless, Public: t.Public, Category: string(t.Category), StartSSH: t.StartSSH, StartJupyter: t.StartJupyter,
		AllowedCUDA: append([]string{}, t.AllowedCUDA...), CreatedAt: v2.At(t.CreatedAt),
	}
	if t.DiskGB == 0 {
		out.Disk = defaultDiskGPU
		if t.Category == fleet.CategoryCPU {
			out.Disk = defaultDiskCPU
		}
	}
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	if m := t.Persistent; m != nil {
		out.Mounts.Persistent = &v2.PersistentMount{Size: m.SizeGB, Path: m.Path}
	}
	if t.Public {
		out.Source = v2.Text(cmp.Or(t.Source, fleet.SourceCommunity))
	}
	return out
}

// publicRecord shows a public template to others than its owner, who cannot use its credential.
func publicRecord(t fleet.Template) v2.Template {
	t.Registry = ""
	return templateRecord(t)
}

func exampleCreateTemplate() v2.CreateTemplateRequest {
	return v2.CreateTemplateRequest{
		Name: "notebook", Image: "docker.io/library/nginx:1.29", Ports: []string{"8888/http", "22/tcp"}, Env: map[string]string{"EPOCHS": "3"},
		Mounts: &v2.TemplateMounts{Persistent: &v2.PersistentMount{Size: 20, Path: "/workspace"}},
	}
}

func exampleTemplate() v2.Template {
	return v2.Template{
		ID: "t5f8k2m7q1w4z9", Name: "notebook", Image: "docker.io/library/nginx:1.29", Disk: 20, Ports: []string{"8888/http", "22/tcp"},
		Env: map[string]string{"EPOCHS": "3"}, Mounts: v2.TemplateMounts{Persistent: &v2.PersistentMount{Size: 20, Path: "/workspace"}},
		Category: "NVIDIA", StartSSH: true, StartJupyter: true, AllowedCUDA: []string{}, CreatedAt: exampleTime(0),
	}
}

func examplePublicTemplate() v2.Template {
	out := exampleTemplate()
	out.Public, out.Source = true, v2.Text(fleet.SourceOfficial)
	return out
}
