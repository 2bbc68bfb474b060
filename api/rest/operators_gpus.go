package rest

import (
	"context"
	"net/http"

	"gantry/api/admin"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

const textNoGPU = "404: there is no such host or GPU."

func gpuParam() *huma.Param {
	p := pathParam("UUID of the GPU, or its place in the host's record from 0 on.", "GPU-0b1c2d3e-0000-0000-0000-000000000000")
	p.Name = "gpu"
	return p
}

func (a *API) registerHostGPUs() {
	gpu := func(method, word, id, summary, text string) route {
		return route{
			method: method, path: "/admin/v1/hosts/{id}/gpus/{gpu}" + word, id: id, tag: "Operators", summary: summary, text: text + " " + textNoGPU,
			scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{hostIDParam(), gpuParam()},
			out: exampleHost(), errors: []int{http.StatusConflict},
		}
	}
	cordon := gpu(http.MethodPost, "/cordon", "cordonGpu", "Give a GPU no new pods",
		"Takes one GPU of a host out of service, as before it is replaced: no new pod gets it, those that have it keep it. It stays so over sessions and "+
			"reboots. 409: the host was removed.")
	cordon.in = admin.CordonGPURequest{Reason: "RMA 4711: row remapping failed"}
	on(a, cordon, byID("host", cordonGPU))
	on(a, gpu(http.MethodPost, "/uncordon", "uncordonGpu", "Give a GPU pods again",
		"Puts a cordoned GPU that the host has back into service. 400: the host does not have it any more. 409: the host was removed."), openGPU(false))
	on(a, gpu(http.MethodPost, "/clear", "clearGpu", "Forget that a GPU was cordoned",
		"Forgets a cordoned GPU that is gone, as after it was replaced; one that the host has is put back into service. 409: the host was removed."), openGPU(true))
}

func cordonGPU(ctx context.Context, svc HostService, id fleet.HostID, c *call, in *admin.CordonGPURequest) (*admin.Host, error) {
	return show(hostRecord)(svc.CordonGPU(ctx, id, c.args.text("gpu"), in.Reason))
}

func openGPU(forget bool) func(context.Context, HostService, *call, *none) (*admin.Host, error) {
	return byID("host", func(ctx context.Context, svc HostService, id fleet.HostID, c *call, _ *none) (*admin.Host, error) {
		return show(hostRecord)(svc.OpenGPU(ctx, id, c.args.text("gpu"), forget))
	})
}
