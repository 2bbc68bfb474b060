package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// submit gives a job to a new endpoint and returns where its status is.
func (w *world) submit() string {
	w.t.Helper()
	var made struct{ ID string }
	user := func(path string, body map[string]any) {
		w.t.Helper()
		var last string
		w.eventually("POST "+path, func() bool {
			for _, m := range w.running() {
				status, out, err := w.ask(m, w.keys.APIKey, http.MethodPost, path, body)
				if last = string(out); err == nil && status >= http.StatusBadRequest && status < http.StatusInternalServerError {
					w.t.Fatalf("POST %s: %d %s", path, status, out)
				}
				if err == nil && status < http.StatusMultipleChoices {
					return json.Unmarshal(out, &made) == nil && made.ID != ""
				}
			}
			return false
		}, func() string { return last })
	}
	user("/v1/templates", map[string]any{"name": "work", "imageName": "example.com/work:1", "isServerless": true})
	user("/v1/endpoints", map[string]any{
		"name": "e", "templateId": made.ID, "computeType": "GPU", "gpuTypeIds": []string{"NVIDIA H100 80GB HBM3"}, "gpuCount": 1, "workersMin": 0, "workersMax": 1,
	})
	endpoint := made.ID
	user("/v2/"+endpoint+"/run", map[string]any{"input": map[string]any{"n": 1}})
	return "/v2/" + endpoint + "/status/" + made.ID
}

// keeps waits until a job is found at a machine.
func (w *world) keeps(m *machine, job string) {
	w.t.Helper()
	var last string
	w.eventually("the job is there", func() bool {
		status, out, err := w.ask(m, w.keys.APIKey, http.MethodGet, job, nil)
		last = string(out)
		return err == nil && status == http.StatusOK && strings.Contains(last, "IN_QUEUE")
	}, func() string { return last + m.log.String() })
}

// One of three schedulers is dead, a fourth comes, and another goes as soon as the control plane lets it: who is left has the
// jobs, too.
func TestJobsSurviveReplacements(t *testing.T) {
	w := three(t)
	job := w.submit()
	lead := w.leader()
	var others []*machine
	for _, m := range w.all {
		if m != lead {
			others = append(others, m)
		}
	}
	others[0].kill()
	fourth := w.join(build(t, ""), map[string]any{})
	gone := w.id(others[1])
	w.eventually("the fourth votes", func() bool {
		n := 0
		for _, m := range w.view().Members {
			if m.Voter {
				n++
			}
		}
		return n == 4
	})
	var last string
	w.eventually("the third is removed", func() bool { // on a busy machine the fourth may not answer in time
		status, out, err := w.ask(lead, w.keys.AdminKey, http.MethodDelete, memberPath+gone, nil)
		last = fmt.Sprint(status, string(out), err)
		return err == nil && (status < 300 || status == http.StatusNotFound)
	}, func() string { return last })
	others[1].kill()
	// Both that are left are needed, and the jobs' group has to find its leader anew.
	lead.kill()
	lead.start()
	w.keeps(fourth, job)
}

// A scheduler that was killed as soon as two others had joined it is replaced; they have the jobs.
func TestJobsSurviveTheFirstLeader(t *testing.T) {
	bin := build(t, "")
	w := newWorld(t, bin)
	job := w.submit()
	first := w.all[0]
	w.join(bin, map[string]any{})
	w.join(bin, map[string]any{})
	w.awaitVoters(3)
	first.kill()
	w.keeps(w.all[1], job)
	w.join(bin, map[string]any{"replaces": w.id(first)})
	w.awaitVoters(3)
	w.keeps(w.all[3], job)
}
