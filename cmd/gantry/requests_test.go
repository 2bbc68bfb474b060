package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	keyLine   = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA me@laptop"
	otherLine = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB you@desk"
)

// TestRequests says what each command line asks of the API.
func TestRequests(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"env": "# note\nA=1\nB=x=y\n", "password": "hush\n", "me.pub": keyLine + "\n", "id": "-----BEGIN OPENSSH PRIVATE KEY-----\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const account, key, tmpl, reg = "a5f8k2m7q1w4z9", "m2c9v4x7b1n5q8", "t5f8k2m7q1w4z9", "r3g8k2m7q1w4z9"
	const volume, volumes, backends, s3 = "vol00000000001", "/v2/network-volumes", "/admin/v1/volume-backends", "user_000000000000000000000000000"
	const hosts, host, member = "/admin/v1/hosts/", "h7d2k9s4f1g6j3", "member00000002"
	create, pod := "pod create train img --gpu H100", "POST /v2/pods "
	tests := []struct {
		args string
		rest []string
		want []string
	}{
		{args: create, want: []string{pod + `{"name":"train","image":"img","gpu":{"id":"H100","count":1}}`}},
		{args: create + " --cuda 12.8 --cuda 12.9 --min-ram-per-gpu 32 --min-vcpu-per-gpu 8", want: []string{
			pod + `{"name":"train","image":"img","gpu":{"id":"H100","count":1,"allowedCudaVersions":["12.8","12.9"],"minRamPerGpu":32,"minVcpuCountPerGpu":8}}`,
		}},
		{args: create + " --min-cuda 12.4 --persistent 50:/workspace --global-networking --ssh --no-jupyter", want: []string{
			pod + `{"name":"train","image":"img","gpu":{"id":"H100","count":1,"minCudaVersion":"12.4"},"mounts":{"persistent":{"size":50,"path":"/workspace"}},"globalNetworking":true,"startSsh":true,"startJupyter":false}`,
		}},
		{args: "pod create web --template " + tmpl + " --cpu cpu3c --network-volume vol00000000001:/data --no-ports --no-registry --args=", want: []string{
			pod + `{"name":"web","cpu":{"id":"cpu3c","vcpuCount":2},"ports":[],"registry":null,"mounts":{"network":[{"volumeId":"vol00000000001","path":"/data"}]},"templateId":"` + tmpl + `","args":""}`,
		}},
		{args: "pod create web --template mine --registry team --cpu cpu3c", want: []string{
			"GET /v2/registries", "GET /v2/templates",
			pod + `{"name":"web","cpu":{"id":"cpu3c","vcpuCount":2},"registry":"` + reg + `","templateId":"` + tmpl + `"}`,
		}},
		{args: create + " --no-cuda --env-file " + dir + "/env --env A=2 --port 80 --port 22/tcp --disk 5", rest: []string{"--", "sh", "-c", "a b"}, want: []string{
			pod + `{"name":"train","image":"img","gpu":{"id":"H100","count":1,"allowedCudaVersions":[]},"args":"sh -c 'a b'","disk":5,"ports":["80/http","22/tcp"],"env":{"A":"2","B":"x=y"}}`,
		}},
		{args: "pod list --status RUNNING --status EXITED --name web --compute-type GPU --gpu H100 --data-center d --template t --network-volume v --include-terminated", want: []string{
			"GET /v2/catalog/gpus?include=AVAILABILITY&product=POD",
			"GET /v2/pods?computeType=GPU&dataCenterId=d&gpuTypeId=H100&includeTerminated=true&name=web&networkVolumeId=v&status=RUNNING&status=EXITED&templateId=t",
		}},
		{args: "pod update " + podID + " --name b --no-locked --persistent 60:/w", want: []string{
			"PATCH /v2/pods/" + podID + ` {"name":"b","mounts":{"persistent":{"size":60,"path":"/w"}},"locked":false}`,
		}},
		{args: "pod update " + podID + " --image i2 --env A=1 --port 80 --no-registry --global-networking --template " + tmpl, want: []string{
			"GET /v2/pods/" + podID,
			"PATCH /v2/pods/" + podID + ` {"image":"i2","ports":["80/http"],"env":{"A":"1"},"registry":null,"globalNetworking":true,"templateId":"` + tmpl + `"}`,
		}},
		{args: "pod update " + podID + " --protect 80 --port-timeout 80=9 --port-timeout 81=5", want: []string{
			"PATCH /v2/pods/" + podID + ` {"portSettings":[{"port":80,"access":"KEY","timeout":9},{"port":81,"timeout":5}]}`,
		}},
		{args: "pod update " + podID + " --no-port-settings", want: []string{"PATCH /v2/pods/" + podID + ` {"portSettings":[]}`}},
		{args: "pod link " + podID + " 80 --for 90s", want: []string{"GET /v2/pods/" + podID + "/link?expiresIn=90&port=80"}},
		{args: "pod update " + podID + " --set-env A=1 --unset-env TOKEN", want: []string{
			"GET /v2/pods/" + podID, "PATCH /v2/pods/" + podID + ` {"env":{"A":"1"}}`,
		}},
		{args: "pod update " + podID + " --no-env --no-ports --args x", want: []string{"GET /v2/pods/" + podID, "PATCH /v2/pods/" + podID + ` {"args":"x","ports":[],"env":{}}`}},

		{args: "template create mine img --category CPU --public --no-ssh --jupyter --cuda 12.8 --persistent 20:/w --disk 9", want: []string{
			`POST /v2/templates {"name":"mine","image":"img","disk":9,"mounts":{"persistent":{"size":20,"path":"/w"}},"public":true,"category":"CPU","startSsh":false,"startJupyter":true,"allowedCudaVersions":["12.8"]}`,
		}},
		{args: "template update mine --no-public --no-cuda --no-registry", want: []string{
			"GET /v2/templates", "PATCH /v2/templates/" + tmpl + ` {"registry":null,"public":false,"allowedCudaVersions":[]}`,
		}},
		{args: "template get " + tmpl, want: []string{"GET /v2/templates/" + tmpl}},
		{args: "template delete mine", want: []string{"GET /v2/templates", "DELETE /v2/templates/" + tmpl}},
		{args: "template catalog --source community", want: []string{"GET /v2/catalog/templates?source=community"}},
		{args: "catalog templates", want: []string{"GET /v2/catalog/templates?source=official"}},
		{args: "registry create team --username robot --password-file " + dir + "/password", want: []string{
			`POST /v2/registries {"name":"team","password":"hush","username":"robot"}`,
		}},
		{args: "registry update team --username robot2 --password-file " + dir + "/password", want: []string{
			"GET /v2/registries", "PATCH /v2/registries/" + reg + ` {"password":"hush","username":"robot2"}`,
		}},
		{args: "registry delete team", want: []string{"GET /v2/registries", "DELETE /v2/registries/" + reg}},
		{args: "secret set HF_TOKEN --from-file " + dir + "/password", want: []string{`PUT /v2/secrets/HF_TOKEN {"value":"hush"}`}},
		{args: "secret list", want: []string{"GET /v2/secrets"}},
		{args: "secret delete HF_TOKEN", want: []string{"DELETE /v2/secrets/HF_TOKEN"}},

		{args: "pod create web img --cpu cpu3c --network-volume datasets", want: []string{
			"GET " + volumes, pod + `{"name":"web","image":"img","cpu":{"id":"cpu3c","vcpuCount":2},"mounts":{"network":[{"volumeId":"` + volume + `","path":"/workspace"}]}}`,
		}},
		{args: "pod update " + podID + " --network-volume " + volume + ":/data", want: []string{
			"PATCH /v2/pods/" + podID + ` {"mounts":{"network":[{"volumeId":"` + volume + `","path":"/data"}]}}`,
		}},
		{args: "volume list", want: []string{"GET " + volumes}},
		{args: "volume get datasets", want: []string{"GET " + volumes, "GET " + volumes + "/" + volume}},
		{args: "volume create datasets --size 100 --data-center EU-RO-1 --wait", want: []string{
			"POST " + volumes + ` {"name":"datasets","size":100,"dataCenter":"EU-RO-1"}`, "GET " + volumes + "/" + volume,
		}},
		{args: "volume create datasets --size 10 --data-center EU-RO-1 --type HIGH_PERFORMANCE", want: []string{
			"POST " + volumes + ` {"name":"datasets","size":10,"dataCenter":"EU-RO-1","type":"HIGH_PERFORMANCE"}`,
		}},
		{args: "volume update " + volume + " --name b --size 200", want: []string{"PATCH " + volumes + "/" + volume + ` {"name":"b","size":200}`}},
		{args: "volume delete " + volume + " datasets", want: []string{"DELETE " + volumes + "/" + volume, "GET " + volumes, "DELETE " + volumes + "/" + volume}},
		{args: "s3-key list", want: []string{"GET /v2/s3-keys"}},
		{args: "s3-key create ci", want: []string{`POST /v2/s3-keys {"name":"ci"}`}},
		{args: "s3-key create ci --read-only --expires-in 1h", want: []string{`POST /v2/s3-keys {"name":"ci","readOnly":true,"expiresAt":"2026-10-01T13:01:30.000Z"}`}},
		{args: "s3-key delete " + s3, want: []string{"DELETE /v2/s3-keys/" + s3}},
		{args: "admin volume-backend list", want: []string{"GET " + backends}},
		{args: "admin volume-backend add b --data-center d --nfs [fd00::1]:/srv --nfs-options nconnect=4 --storage-host gpu-01 --storage-path /srv/v", want: []string{
			"GET /admin/v1/hosts", "POST " + backends + ` {"id":"b","dataCenterId":"d","kind":"nfs","nfs":{"server":"fd00::1","export":"/srv","options":"nconnect=4"},"storageHost":"` + host + `","storagePath":"/srv/v"}`,
		}},
		{args: "admin volume-backend add b --data-center d --type HIGH_PERFORMANCE --cephfs fs:/gantry --monitor 10.0.0.1:6789 --monitor m2:6789 --user g --admin-user ga --key-file " + dir + "/password --admin-key-file " + dir + "/password", want: []string{
			"POST " + backends + ` {"id":"b","dataCenterId":"d","type":"HIGH_PERFORMANCE","kind":"cephfs","cephfs":{"monitors":["10.0.0.1:6789","m2:6789"],"fileSystem":"fs","path":"/gantry","user":"g","adminUser":"ga"},"key":"hush","adminKey":"hush"}`,
		}},
		{args: "admin volume-backend add b --data-center d --local /srv/v --storage-host " + host, want: []string{
			"POST " + backends + ` {"id":"b","dataCenterId":"d","kind":"local","local":{"path":"/srv/v"},"storageHost":"` + host + `"}`,
		}},
		{args: "admin volume-backend get b", want: []string{"GET " + backends + "/b"}},
		{args: "admin volume-backend update b --closed", want: []string{"PATCH " + backends + `/b {"closed":true}`}},
		{args: "admin volume-backend update b --no-closed --storage-host= --storage-path= --key-file " + dir + "/password", want: []string{
			"PATCH " + backends + `/b {"storageHost":"","storagePath":"","closed":false,"key":"hush"}`,
		}},
		{args: "admin volume-backend delete b", want: []string{"DELETE " + backends + "/b"}},
		{args: "admin volume-backend delete --force b", want: []string{"DELETE " + backends + "/b?force=true"}},
		{args: "net list", want: []string{"GET /v2/network"}},
		{args: "net check", want: []string{"POST /v2/network/check", "GET /v2/network"}},
		{args: "net check -o json", want: []string{"POST /v2/network/check"}},
		{args: "net check --account " + account, want: []string{"POST /admin/v1/accounts/" + account + "/network-check"}},
		{args: "net show gpu-01", want: []string{"GET /admin/v1/hosts", "GET " + hosts + host + "/network"}},
		{args: "admin placement get", want: []string{"GET /admin/v1/placement"}},
		{args: "admin placement set --keep-percent 0", want: []string{`PUT /admin/v1/placement {"keepPercent":0}`}},
		{args: "host capacity", want: []string{"GET /admin/v1/capacity"}},
		{args: "admin network get", want: []string{"GET /admin/v1/network"}},
		{args: "admin network set --pool 10.0.0.0/9 --bits 20 --first-vxlan-id 5 --suffix a.b --alias c.d --alias e --mtu 1400 --vxlan-port 1 --wireguard-port 2 --tunnel-range 100.64.0.0/16 --pod-mbps 0 --grace 0s", want: []string{
			`PATCH /admin/v1/network {"pool":"10.0.0.0/9","bits":20,"firstVxlanId":5,"suffix":"a.b","aliases":["c.d","e"],"mtu":1400,"vxlanPort":1,"wireguardPort":2,"tunnelRange":"100.64.0.0/16","podMbps":0,"graceSeconds":0}`,
		}},
		{args: "admin network set --no-alias", want: []string{`PATCH /admin/v1/network {"aliases":[]}`}},
		{args: "account update " + account + " --egress none", want: []string{"PATCH /admin/v1/accounts/" + account + ` {"egress":"none"}`}},
		{args: "admin datacenter put dc-1 --underlay private", want: []string{
			"GET /admin/v1/datacenters", `PUT /admin/v1/datacenters/dc-1 {"name":"One","region":"EUROPE","country":"RO","underlay":"private","compliance":["GDPR"]}`,
		}},
		{args: "host role gpu-01 storage s3", want: []string{"GET /admin/v1/hosts", "PATCH " + hosts + host + ` {"roles":["storage","s3"]}`}},
		{args: "host role " + host + " --none", want: []string{"PATCH " + hosts + host + ` {"roles":[]}`}},

		{args: "catalog gpus --count 2 --cloud SECURE --country RO --country DE --cuda 12.8", want: []string{
			"GET /v2/catalog/gpus?cloud=SECURE&count=2&countryCodes=RO%2CDE&cudaVersions=12.8&include=AVAILABILITY&product=POD",
		}},
		{args: "catalog gpus --min-cuda 12.4", want: []string{"GET /v2/catalog/gpus?include=AVAILABILITY&minCudaVersion=12.4&product=POD"}},
		{args: "catalog datacenters --region EUROPE --compliance GDPR --compliance HIPAA --no-global-network", want: []string{
			"GET /v2/catalog/datacenters?compliance=GDPR%2CHIPAA&globalNetwork=false&include=GPU_AVAILABILITY%2CCPU_AVAILABILITY&regions=EUROPE",
		}},
		{args: "billing", want: []string{"GET /v2/billing?bucketSize=day"}},
		{args: "billing pods --id p --last 24 --bucket hour", want: []string{"GET /v2/billing/pods?bucketSize=hour&lastN=24&podId=p"}},
		{args: "billing volumes --start 2026-09-01 --end 24h", want: []string{
			"GET /v2/billing/network-volumes?bucketSize=day&endTime=2026-09-30T12%3A01%3A30Z&startTime=2026-09-01T00%3A00%3A00Z",
		}},

		{args: "account", want: []string{"GET /v2/account"}},
		{args: "account set --spend-limit 20 --low-balance default", want: []string{`PATCH /v2/account {"spendLimit":20,"lowBalance":null}`}},
		{args: "account set --spend-limit none", want: []string{`PATCH /v2/account {"spendLimit":null}`}},
		{args: "account update " + account + " --name n --prepaid", want: []string{"PATCH /admin/v1/accounts/" + account + ` {"name":"n","prepaid":true}`}},
		{args: "account update " + account + " --rate-minute 5", want: []string{
			"GET /admin/v1/accounts/" + account, "PATCH /admin/v1/accounts/" + account + ` {"quotas":{"minute":5,"hour":200,"day":3000}}`,
		}},
		{args: "account update " + account + " --rate-default --no-prepaid", want: []string{"PATCH /admin/v1/accounts/" + account + ` {"prepaid":false,"quotas":null}`}},
		{args: "account credit " + account + " 12.5", want: []string{"POST /admin/v1/accounts/" + account + `/credits {"amount":12.5}`}},
		{args: "account credit " + account + " 12.5 --take", want: []string{"POST /admin/v1/accounts/" + account + `/credits {"amount":-12.5}`}},
		{args: "key create ci --preset restricted --permission pods=write --invoke e1 --invoke e2", want: []string{
			`POST /v2/account/keys {"name":"ci","preset":"restricted","permissions":{"pods":"write"},"invoke":["e1","e2"]}`,
		}},
		{args: "key create ci --invoke all", want: []string{`POST /v2/account/keys {"name":"ci","preset":"all","invoke":"all"}`}},
		{args: "account key " + account + " --preset admin", want: []string{"POST /admin/v1/accounts/" + account + `/keys {"name":"first","preset":"admin"}`}},
		{args: "key update " + key + " --disable", want: []string{"PATCH /v2/account/keys/" + key + ` {"disabled":true}`}},
		{args: "key update " + key + " --enable --name b", want: []string{"PATCH /v2/account/keys/" + key + ` {"name":"b","disabled":false}`}},
		{args: "ssh-key add " + dir + "/me.pub", want: []string{
			"GET /v2/account/ssh-keys", `PUT /v2/account/ssh-keys {"keys":["` + otherLine + `","` + keyLine + `"]}`,
		}},
		{args: "ssh-key remove you@desk", want: []string{"GET /v2/account/ssh-keys", `PUT /v2/account/ssh-keys {"keys":[]}`}},
		{args: "ssh-key set --none", want: []string{`PUT /v2/account/ssh-keys {"keys":[]}`}},
		{args: "ssh-key set " + dir + "/me.pub", want: []string{`PUT /v2/account/ssh-keys {"keys":["` + keyLine + `"]}`}},
		{args: "host set-cloud " + host + " COMMUNITY", want: []string{"PATCH " + hosts + host + ` {"cloud":"COMMUNITY"}`}},
		{args: "host set-cloud gpu-01 COMMUNITY", want: []string{"GET /admin/v1/hosts", "PATCH " + hosts + host + ` {"cloud":"COMMUNITY"}`}},
		{args: "host list --state ready --state fenced --label rack=b4 --label a=b=c", want: []string{
			"GET /admin/v1/hosts?label=rack%3Db4&label=a%3Db%3Dc&state=ready&state=fenced",
		}},
		{args: "host pods " + host, want: []string{"GET " + hosts + host + "/pods"}},
		{args: "host label gpu-01 rack=b5 zone= owner-", want: []string{
			"GET /admin/v1/hosts", "PATCH " + hosts + host + ` {"labels":{"owner":null,"rack":"b5","zone":""}}`,
		}},
		{args: "host label " + host + " owner- rack- keep-", want: []string{"PATCH " + hosts + host + ` {"labels":{"keep":null,"owner":null,"rack":null}}`}},
		{args: "host cordon " + host, want: []string{"POST " + hosts + host + "/cordon"}},
		{args: "host uncordon gpu-01", want: []string{"GET /admin/v1/hosts", "POST " + hosts + host + "/uncordon"}},
		{args: "host drain " + host, want: []string{"POST " + hosts + host + `/drain {}`}},
		{args: "host drain " + host + " --deadline 2030-01-01T00:00:00Z --reason fans", want: []string{"POST " + hosts + host + `/drain {"reason":"fans","deadline":"2030-01-01T00:00:00.000Z"}`}},
		{args: "host drain " + host + " --force --yes", want: []string{"POST " + hosts + host + `/drain {"force":true}`}},
		{args: "host drain " + host + " --dry-run --keep-running", want: []string{"GET " + hosts + host + `/drain?keepRunning=true`}},
		{args: "host drain " + host + " --keep-running", want: []string{"POST " + hosts + host + `/drain {"keepRunning":true}`}},
		{args: "host fence " + host + " --yes", want: []string{"GET " + hosts + host, "POST " + hosts + host + "/fence"}},
		{args: "host ack-alarm " + host, want: []string{"POST " + hosts + host + "/ack-alarm"}},
		{args: "host remove gpu-01 -y", want: []string{"GET /admin/v1/hosts", "GET " + hosts + host, "DELETE " + hosts + host}},

		{args: "raft members", want: []string{"GET /admin/v1/cluster"}},
		{args: "raft add", want: []string{"GET /admin/v1/cluster", `POST /admin/v1/cluster/tokens {"ttlSeconds":3600}`}},
		{args: "raft add --non-voter", want: []string{"GET /admin/v1/cluster", `POST /admin/v1/cluster/tokens {"nonVoter":true,"ttlSeconds":3600}`}},
		{args: "raft add --replaces sched-2 --ttl 10m", want: []string{
			"GET /admin/v1/cluster", "GET /admin/v1/cluster", `POST /admin/v1/cluster/tokens {"replaces":"` + member + `","ttlSeconds":600}`,
		}},
		{args: "raft promote " + member, want: []string{"POST /admin/v1/cluster/members/" + member + "/promote"}},
		{args: "raft demote sched-2", want: []string{"GET /admin/v1/cluster", "POST /admin/v1/cluster/members/" + member + "/demote"}},
		{args: "raft remove " + member + " --yes", want: []string{"GET /admin/v1/cluster", "DELETE /admin/v1/cluster/members/" + member}},
		{args: "raft remove " + member + " --yes --force", want: []string{"GET /admin/v1/cluster", "DELETE /admin/v1/cluster/members/" + member + "?force=true"}},
		{args: "raft transfer", want: []string{`POST /admin/v1/cluster/transfer {}`}},
		{args: "raft transfer sched-2", want: []string{"GET /admin/v1/cluster", `POST /admin/v1/cluster/transfer {"memberId":"` + member + `"}`}},
		{args: "host gpu cordon gpu-01 GPU-1 --reason fan", want: []string{"GET /admin/v1/hosts", `POST /admin/v1/hosts/h7d2k9s4f1g6j3/gpus/GPU-1/cordon {"reason":"fan"}`}},
		{args: "host gpu uncordon h7d2k9s4f1g6j3 3", want: []string{"POST /admin/v1/hosts/h7d2k9s4f1g6j3/gpus/3/uncordon"}},
		{args: "host gpu clear h7d2k9s4f1g6j3 GPU-1", want: []string{"POST /admin/v1/hosts/h7d2k9s4f1g6j3/gpus/GPU-1/clear"}},
		{args: "account suspend a5f8k2m7q1w4z9 --reason unpaid", want: []string{`POST /admin/v1/accounts/a5f8k2m7q1w4z9/suspend {"reason":"unpaid"}`}},
		{args: "account suspend a5f8k2m7q1w4z9 --reason unpaid --stop-pods", want: []string{
			`POST /admin/v1/accounts/a5f8k2m7q1w4z9/suspend {"reason":"unpaid","stopPods":true}`,
		}},
		{args: "account resume a5f8k2m7q1w4z9", want: []string{"POST /admin/v1/accounts/a5f8k2m7q1w4z9/resume"}},
		{args: "raft clock show", want: []string{"GET /admin/v1/cluster"}},
		{args: "raft clock confirm --yes", want: []string{"GET /admin/v1/cluster", `POST /admin/v1/cluster/clock {"time":"2026-10-03T12:00:00Z"}`}},
		{args: "raft ca show", want: []string{"GET /admin/v1/ca"}},
		{args: "raft ca rotate --yes", want: []string{"POST /admin/v1/ca/rotate"}},
		{args: "raft ca finish --yes", want: []string{"GET /admin/v1/ca", `POST /admin/v1/ca/finish {"step":"renews"}`}},
		{args: "admin datacenter put dc-1 --global-network", want: []string{
			"GET /admin/v1/datacenters", `PUT /admin/v1/datacenters/dc-1 {"name":"One","region":"EUROPE","country":"RO","globalNetwork":true,"compliance":["GDPR"]}`,
		}},
		{args: "admin datacenter put dc-2 --name Two --region ASIA", want: []string{
			"GET /admin/v1/datacenters", `PUT /admin/v1/datacenters/dc-2 {"name":"Two","region":"ASIA"}`,
		}},
		{args: "admin gpu-type put H100 --secure 2.5", want: []string{
			"GET /admin/v1/gpu-types", `PUT /admin/v1/gpu-types/H100 {"name":"H","manufacturer":"NVIDIA","memory":80,"price":{"secure":2.5,"community":2,"serverless":0}}`,
		}},
		{args: "admin cpu-flavor put cpu3c --max-vcpu 64 --secure-per-vcpu 0.05", want: []string{
			"GET /admin/v1/cpu-flavors",
			`PUT /admin/v1/cpu-flavors/cpu3c {"name":"C","group":"g","vcpu":{"min":2,"max":64},"ramGbPerVcpu":2.5,"diskGbPerVcpu":10,"price":{"securePerVcpu":0.05,"serverlessPerVcpu":0.04}}`,
		}},
		{args: "admin model put draw --endpoint e4m7x1c9v2b6n8 --request 0.02 --unit 0.001 --counted megapixels --max-units 16 --description Draws.", want: []string{
			"GET /admin/v1/models", `PUT /admin/v1/models/draw {"endpointId":"e4m7x1c9v2b6n8","description":"Draws.","price":{"request":0.02,"unit":0.001,"counted":"megapixels","maxUnits":16},"limits":{"jobs":100}}`,
		}},
		{args: "admin model put paint --request 0.03 --jobs 7 --closed", want: []string{
			"GET /admin/v1/models", `PUT /admin/v1/models/paint {"endpointId":"e4m7x1c9v2b6n8","inputSchema":{"type":"object"},"price":{"request":0.03},"limits":{"jobs":7},"closed":true}`,
		}},
		{args: "admin model delete paint", want: []string{"DELETE /admin/v1/models/paint"}},
		{args: "admin object-storage set --all-gb 2000 --bucket other", want: []string{
			"GET /admin/v1/object-storage", `PUT /admin/v1/object-storage {"endpoint":"https://s3.example.com","region":"r","bucket":"other","accessKey":"k","accountGb":50,"allGb":2000}`,
		}},
		{args: "admin object-storage delete", want: []string{"DELETE /admin/v1/object-storage"}},
		{args: "admin gpu-type delete H100", want: []string{"DELETE /admin/v1/gpu-types/H100"}},
		{args: "admin storage-prices set --volume-first 0.07", want: []string{
			"GET /admin/v1/storage-prices",
			`PUT /admin/v1/storage-prices {"containerDisk":0.1,"persistentRunning":0,"persistentStopped":0,"volumeFirst":0.07,"volumeBeyond":0,"fastFirst":0,"fastBeyond":0}`,
		}},
		{args: "admin template-source " + tmpl + " verified", want: []string{"PUT /admin/v1/templates/" + tmpl + `/source {"source":"verified"}`}},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			got, api := gantry(t, setup{api: world()}, append(strings.Fields(tt.args), tt.rest...)...)
			if got.Code != 0 {
				t.Errorf("%+v", got)
			}
			if diff := cmp.Diff(ordered(tt.want), ordered(api.seen)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// world answers every call that the command line makes.
func world() map[string][]string {
	const account = `{"id":"a5f8k2m7q1w4z9","name":"research","balance":10,"hourlyRate":2.5,"prepaid":true,"quotas":{"minute":10,"hour":200,"day":3000}}`
	const tmpl = `{"id":"t5f8k2m7q1w4z9","name":"mine","image":"img","category":"CPU"}`
	const key = `{"id":"m2c9v4x7b1n5q8","name":"ci","hint":"gk_abc","permissions":{"pods":"write","s3":"none"},"invoke":"all"}`
	const bill = `{"records":[],"metadata":{"query":{"bucketSize":"day"},"totals":{}}}`
	const host = `{"id":"h7d2k9s4f1g6j3","name":"gpu-01","cloud":"COMMUNITY","state":"ready","eligibility":"open","labels":{"rack":"b4","owner":"lab","keep":"x"}}`
	const cluster = `{"id":"c4k8v2x7m1q5z9","level":4,"lineage":0,
		"clock":{"time":"2026-10-03T12:00:00.000Z","logTime":"2026-10-01T12:00:00.000Z","held":"the leader's clock is ahead of the log's time","leapSeconds":600},"members":[
		{"id":"member00000001","name":"sched-1","address":"10.0.0.11:8443","voter":true,"leader":true,"reachable":true,"applied":1000,"version":"1.2.0","clockMs":0,"problem":null,"removedAt":null},
		{"id":"member00000002","name":"sched-2","address":"10.0.0.12:8443","voter":true,"reachable":true,"applied":1000,"version":"1.2.0","clockMs":-172800012,"removedAt":null},
		{"id":"member00000003","name":"sched-3","address":"10.0.0.13:8443","voter":true,"applied":900,"lag":100,"silentMs":90400,"problem":"It does not answer.","removedAt":null},
		{"id":"member00000004","name":"sched-4","address":"10.0.0.14:8443","nonVoter":true,"reachable":true,"applied":1000,"removedAt":null},
		{"id":"member00000005","name":"sched-5","address":"10.0.0.15:8443","reachable":true,"applied":10,"lag":990,"removedAt":null},
		{"id":"member00000006","name":"sched-2","address":"10.0.0.12:8443","removedAt":"2026-10-01T11:00:00.000Z"}]}`
	out := map[string][]string{
		"POST /v2/pods": {"201 " + podJSON(nil)}, "GET /v2/pods": {`200 {"pods":[]}`},
		"PATCH /v2/pods/" + podID: {"200 " + podJSON(nil)}, get(podID): {"200 " + podJSON(nil)},
		get(podID + "/link"): {`200 {"url":"https://p-80.example/?gantry-link=1.a","expiresAt":"2026-10-01T12:00:00.000Z"}`},
		"GET /v2/templates":  {`200 {"templates":[` + tmpl + `]}`}, "POST /v2/templates": {"201 " + tmpl},
		"GET /v2/catalog/templates": {`200 {"templates":[]}`},
		"GET /v2/registries":        {`200 {"registries":[{"id":"r3g8k2m7q1w4z9","name":"team"}]}`}, "POST /v2/registries": {`201 {"id":"r3g8k2m7q1w4z9","name":"team"}`},
		"DELETE /v2/registries/r3g8k2m7q1w4z9": {"204 "}, "PATCH /v2/registries/r3g8k2m7q1w4z9": {`200 {"id":"r3g8k2m7q1w4z9","name":"team"}`},
		"GET /v2/secrets": {`200 {"secrets":[]}`}, "PUT /v2/secrets/HF_TOKEN": {`200 {"name":"HF_TOKEN"}`}, "DELETE /v2/secrets/HF_TOKEN": {"204 "},
		"GET /v2/catalog/gpus": {`200 {"gpus":[]}`}, "GET /v2/catalog/datacenters": {`200 {"dataCenters":[]}`},
		"GET /v2/billing": {"200 " + bill}, "GET /v2/billing/pods": {"200 " + bill}, "GET /v2/billing/network-volumes": {"200 " + bill},
		"GET /v2/account":   {"200 " + account},
		"PATCH /v2/account": {"200 " + account},
		"POST /admin/v1/accounts/a5f8k2m7q1w4z9/credits":        {`201 {"balance":12.5}`},
		"POST /v2/account/keys":                                 {`201 {"key":` + key + `,"apiKey":"gk_new"}`},
		"POST /admin/v1/accounts/a5f8k2m7q1w4z9/keys":           {`201 {"key":` + key + `,"apiKey":"gk_new"}`},
		"PATCH /v2/account/keys/m2c9v4x7b1n5q8":                 {"200 " + key},
		"GET /v2/account/ssh-keys":                              {`200 {"keys":["` + otherLine + `"]}`},
		"PUT /v2/account/ssh-keys":                              {`200 {"keys":["` + keyLine + `"]}`},
		"GET /admin/v1/hosts":                                   {`200 {"hosts":[` + host + `]}`},
		"DELETE /admin/v1/hosts/h7d2k9s4f1g6j3":                 {"204 "},
		"POST /admin/v1/hosts/h7d2k9s4f1g6j3/gpus/GPU-1/cordon": {"200 " + host}, "POST /admin/v1/hosts/h7d2k9s4f1g6j3/gpus/3/uncordon": {"200 " + host},
		"POST /admin/v1/hosts/h7d2k9s4f1g6j3/gpus/GPU-1/clear": {"200 " + host},
		"GET /admin/v1/hosts/h7d2k9s4f1g6j3/pods":              {`200 {"pods":[]}`},
		"GET /admin/v1/hosts/h7d2k9s4f1g6j3/drain":             {`200 {"pods":[]}`},
		"GET /admin/v1/cluster":                                {"200 " + cluster},
		"POST /admin/v1/accounts/a5f8k2m7q1w4z9/suspend":       {"200 " + account}, "POST /admin/v1/accounts/a5f8k2m7q1w4z9/resume": {"200 " + account},
		"POST /admin/v1/cluster/tokens":                   {`201 {"token":"one-use","expiresAt":"2026-10-01T12:11:30.000Z"}`},
		"POST /admin/v1/cluster/transfer":                 {"204 "},
		"POST /admin/v1/cluster/clock":                    {"204 "},
		"GET /admin/v1/ca":                                {"200 " + caJSON},
		"POST /admin/v1/ca/rotate":                        {"200 " + caJSON},
		"POST /admin/v1/ca/finish":                        {"200 " + caJSON},
		"DELETE /admin/v1/cluster/members/member00000002": {"204 "},
		"PUT /admin/v1/templates/t5f8k2m7q1w4z9/source":   {"200 " + tmpl},
		"GET /admin/v1/datacenters":                       {`200 {"dataCenters":[{"id":"dc-1","name":"One","region":"EUROPE","country":"RO","globalNetwork":false,"compliance":["GDPR"]}]}`},
		"PUT /admin/v1/datacenters/dc-1":                  {`200 {"id":"dc-1"}`}, "PUT /admin/v1/datacenters/dc-2": {`200 {"id":"dc-2"}`},
		"GET /admin/v1/gpu-types":      {`200 {"gpuTypes":[{"id":"H100","name":"H","manufacturer":"NVIDIA","memory":80,"price":{"secure":1,"community":2},"contributed":true}]}`},
		"PUT /admin/v1/gpu-types/H100": {`200 {"id":"H100"}`}, "DELETE /admin/v1/gpu-types/H100": {"204 "},
		"GET /admin/v1/object-storage": {`200 {"endpoint":"https://s3.example.com","region":"r","bucket":"b","accessKey":"k","accountGb":50,"allGb":1000}`},
		"PUT /admin/v1/object-storage": {`200 {"endpoint":"https://s3.example.com"}`}, "DELETE /admin/v1/object-storage": {"204 "},
		"GET /admin/v1/models":      {`200 {"models":[{"id":"paint","endpointId":"e4m7x1c9v2b6n8","inputSchema":{"type":"object"},"price":{"request":0.02},"limits":{"jobs":5}}]}`},
		"PUT /admin/v1/models/draw": {`200 {"id":"draw"}`}, "PUT /admin/v1/models/paint": {`200 {"id":"paint"}`}, "DELETE /admin/v1/models/paint": {"204 "},
		"GET /admin/v1/cpu-flavors":       {`200 {"cpuFlavors":[{"id":"cpu3c","name":"C","group":"g","vcpu":{"min":2,"max":32},"ramGbPerVcpu":2.5,"diskGbPerVcpu":10,"price":{"securePerVcpu":0.03,"serverlessPerVcpu":0.04}}]}`},
		"PUT /admin/v1/cpu-flavors/cpu3c": {`200 {"id":"cpu3c"}`},
		"GET /admin/v1/storage-prices":    {`200 {"containerDisk":0.1}`}, "PUT /admin/v1/storage-prices": {`200 {"containerDisk":0.1}`},
	}
	for _, method := range []string{"GET", "PATCH"} {
		out[method+" /admin/v1/accounts/a5f8k2m7q1w4z9"] = []string{"200 " + account}
		out[method+" /v2/templates/t5f8k2m7q1w4z9"] = []string{"200 " + tmpl}
	}
	const volume = `{"id":"vol00000000001","name":"datasets","size":100,"dataCenter":"EU-RO-1","type":"STANDARD","status":"`
	for what, status := range map[string]string{"POST /v2/network-volumes": "201 ", "GET /v2/network-volumes/vol00000000001": "200 ", "PATCH /v2/network-volumes/vol00000000001": "200 "} {
		state := "READY"
		if status == "201 " {
			state = "CREATING"
		}
		out[what] = []string{status + volume + state + `"}`}
	}
	out["GET /v2/network-volumes"], out["DELETE /v2/network-volumes/vol00000000001"] = []string{`200 {"networkVolumes":[` + volume + `READY"}]}`}, []string{"204 "}
	out["GET /v2/s3-keys"], out["DELETE /v2/s3-keys/user_000000000000000000000000000"] = []string{`200 {"s3Keys":[]}`}, []string{"204 "}
	out["POST /v2/s3-keys"] = []string{`201 {"key":{"id":"user_000000000000000000000000000","name":"ci"},"secretAccessKey":"rps_new"}`}
	for what, answer := range map[string]string{"GET ": "200 ", "POST ": "201 ", "GET /b": "200 ", "PATCH /b": "200 ", "DELETE /b": "204 "} {
		method, path, _ := strings.Cut(what, " ")
		out[method+" /admin/v1/volume-backends"+path] = []string{answer + `{"id":"b"}`}
	}
	out["DELETE /v2/templates/t5f8k2m7q1w4z9"] = []string{"204 "}
	out["GET /v2/network"], out["POST /v2/network/check"] = []string{`200 {"networks":[]}`}, []string{`200 {"probes":[]}`}
	out["POST /admin/v1/accounts/a5f8k2m7q1w4z9/network-check"] = []string{`200 {"probes":[]}`}
	out["GET /admin/v1/hosts/h7d2k9s4f1g6j3/network"] = []string{`200 {"tunnel":"kernel"}`}
	for _, what := range []string{"GET ", "PATCH "} {
		out["GET /admin/v1/capacity"] = []string{`200 {"gpus":[]}`}
		out["GET /admin/v1/placement"], out["PUT /admin/v1/placement"] = []string{`200 {"keepPercent":50}`}, []string{`200 {"keepPercent":0}`}
		out[what+"/admin/v1/network"] = []string{`200 {"pool":"10.64.0.0/10"}`}
	}
	for _, what := range []string{"GET ", "PATCH "} {
		out[what+"/admin/v1/hosts/h7d2k9s4f1g6j3"] = []string{"200 " + host}
	}
	for _, what := range []string{"cordon", "uncordon", "drain", "fence", "ack-alarm"} {
		out["POST /admin/v1/hosts/h7d2k9s4f1g6j3/"+what] = []string{"200 " + host}
	}
	for _, what := range []string{"promote", "demote"} {
		out["POST /admin/v1/cluster/members/member00000002/"+what] = []string{"204 "}
	}
	return out
}

func TestRefusedCommandLines(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"id": "-----BEGIN OPENSSH PRIVATE KEY-----\n", "bad.pub": "ssh-ed25519 hidden\n", "env": "SECRET hidden\n", "empty": "\n", "binary": "\xff\xfe"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for args, want := range map[string]string{
		"pod create web --cpu c":                                           "say the image, or --template",
		"pod create web i --cpu c --cuda 12.8":                             "go with --gpu",
		"pod create web i --gpu g --cuda 12.8 --no-cuda":                   "--cuda and --no-cuda exclude each other",
		"pod create web i --gpu g --persistent /workspace":                 "--persistent must be GB:PATH",
		"pod create web i --gpu g --network-volume v:":                     "--network-volume must be VOLUME or VOLUME:PATH",
		"volume create v --size 10":                                        "missing flags: --data-center",
		"volume create v --data-center d":                                  "missing flags: --size",
		"volume update v":                                                  "say what to change",
		"s3-key create k --expires-in=-1h":                                 "--expires-in must be positive",
		"admin volume-backend add b --data-center d":                       "say one of --nfs, --cephfs and --local",
		"admin volume-backend add b --data-center d --nfs a:/b --local /c": "say one of --nfs, --cephfs and --local",
		"admin volume-backend add b --data-center d --nfs /srv":            "--nfs must be SERVER:/EXPORT",
		"admin volume-backend add b --data-center d --cephfs fs":           "--cephfs must be NAME:/PATH",
		"admin volume-backend add b --data-center d --local /v --user u":   "go with --cephfs",
		"admin volume-backend update b":                                    "say what to change",
		"admin volume-backend update b --nfs-options ro":                   "--nfs-options goes with --nfs",
		"admin volume-backend update b --key-file " + dir + "/empty":       "the file is empty",
		"host role gpu-01":                                                 "say the roles",
		"host role gpu-01 s3 --none":                                       "say the roles",
		"pod create web i --gpu g --persistent 9:/a --network-volume v:/b": "--persistent and --network-volume exclude each other",
		"pod create web i --cpu c --port 80 --no-ports":                    "--port and --no-ports exclude each other",
		"pod create web i --cpu c --registry r --no-registry":              "--registry and --no-registry exclude each other",
		"pod create web i --cpu c --env-file " + dir + "/env":              "line 1 is not K=V",
		"pod create web i --cpu c --args x -- y":                           "--args and arguments after -- exclude each other",
		"pod update web":                                                   "say what to change",
		"pod update web --env A=1 --set-env B=2":                           "exclude each other",
		"pod exec web":                                                     "say the program after the pod",
		"pod exec -it web -- sh":                                           "-t with -i needs a terminal",
		"pod cp a b":                                                       "one of the two must be POD:/PATH",
		"pod cp web:rel b":                                                 "one of the two must be POD:/PATH",
		"pod cp web:/a web:/b":                                             "copying from pod to pod",
		"template update mine":                                             "say what to change",
		"registry create r --username u":                                   "there is no terminal to ask on",
		"registry create r --username u --password-file " + dir + "/empty": "the password is empty",
		"secret set s":                                                     "there is no terminal to ask on: give --from-file",
		"secret set s --from-file " + dir + "/empty":                       "the value is empty",
		"secret set s --from-file " + dir + "/binary":                      "the value is not text in UTF-8",
		"secret set s hush":                                                "unexpected argument hush",
		"billing --last 3 --start 24h":                                     "--last excludes --start and --end",
		"billing --start yesterday":                                        "--start must be a time",
		"billing --id p":                                                   "--id goes with",
		"key update k":                                                     "say --name, --disable or --enable",
		"key update k --disable --enable":                                  "exclude each other",
		"key create k --permission pods":                                   "--permission must be GROUP=ACCESS",
		"key create k --invoke all --invoke e":                             "--invoke all stands alone",
		"account update a":                                                 "say what to change",
		"account update a --rate-default --rate-minute 1":                  "--rate-default excludes",
		"account credit a 5 -- 5":                                          "takes no arguments after --",
		"account credit a nan":                                             "the amount must be USD",
		"ssh-key add " + dir + "/id":                                       "holds a private key",
		"ssh-key add " + dir + "/bad.pub":                                  "line 1 is no public SSH key",
		"ssh-key set":                                                      "say either files or --none",
		"ssh-key set " + dir + "/empty":                                    "the files hold no key",
		"admin datacenter put new --name n":                                "a new one needs --name and --region",
		"admin object-storage set":                                         "say what to change",
		"admin model put new --request 0.1":                                "a new one needs --endpoint and --request",
		"admin gpu-type put new --name n":                                  "a new one needs --name, --manufacturer and --memory",
		"admin cpu-flavor put new":                                         "a new one needs --name",
		"admin storage-prices set":                                         "say which price",
		"host list --label rack":                                           "--label must be K=V",
		"host label gpu-01 rack":                                           "a change must be K=V or K-",
		"host label gpu-01 =x":                                             "a change must be K=V or K-",
		"host label gpu-01 rack=b rack-":                                   "both set and removed",
		"host fence gpu-01":                                                "add --yes",
		"host remove gpu-01":                                               "add --yes",
		"raft remove sched-2":                                              "add --yes",
		"raft ca rotate":                                                   "add --yes",
		"raft clock confirm":                                               "add --yes",
		"raft ca finish":                                                   "add --yes",
		"raft add --non-voter --replaces sched-2":                          "exclude each other",
		"account suspend research":                                         "--reason",
		"snapshot save f --recipient age1 --passphrase-file p":             "exclude each other",
		"snapshot save " + dir + "/id":                                     "is there already",
		"snapshot save " + dir + " --force":                                "is no file",
		"snapshot save " + dir + "/new --recipient age1x":                  "not a recipient",
		"snapshot save " + dir + "/no/new":                                 "no such file",
		"snapshot inspect " + dir + "/nothing":                             "no such file",
		"snapshot inspect f --identity i --passphrase-file p":              "exclude each other",
		"snapshot restore f --data-dir d --seal-key s":                     "--address",
		"raft add --ttl 59s":                                               "--ttl must be 1m to 168h",
		"raft add --ttl 169h":                                              "--ttl must be 1m to 168h",
	} {
		got, _ := gantry(t, setup{api: world()}, strings.Fields(args)...)
		if got.Code != exitUsage || !strings.Contains(got.Err, want) || strings.Contains(got.Err, "hidden") {
			t.Errorf("gantry %s: %+v, want %s", args, got, want)
		}
	}
	for args, want := range map[string]string{
		"host cordon nobody":                             "gantry: no host has the id or name nobody\n",
		"raft promote nobody":                            "gantry: no scheduler has the id or name nobody\n",
		"template get nobody":                            "gantry: no template has the id or name nobody\n",
		"registry delete nobody":                         "gantry: no registry credential has the id or name nobody\n",
		"ssh-key remove nobody":                          "gantry: no key has the fingerprint or comment nobody\n",
		"pod create a i --cpu c --template nobody":       "gantry: no template has the id or name nobody\n",
		"pod create a i --cpu c --network-volume nobody": "gantry: no network volume has the id or name nobody\n",
		"volume delete nobody":                           "gantry: no network volume has the id or name nobody\n",
		"host role nobody s3":                            "gantry: no host has the id or name nobody\n",
		"host get zzzzzzzzzzzzzz":                        "gantry: no host has the id or name zzzzzzzzzzzzzz\n",
		"secret delete NOPE":                             "gantry: no secret has the name NOPE\n",
		"key delete zzzzzzzzzzzzzz":                      "gantry: no API key has the id zzzzzzzzzzzzzz\n",
		"admin volume-backend get nope":                  "gantry: no backend has the id nope\n",
		"admin volume-backend update nope --closed":      "gantry: no backend has the id nope\n",
		"host gpu cordon gpu-01 NOPE --reason fan":       "gantry: host gpu-01 has no GPU NOPE\n",
		"host gpu clear h7d2k9s4f1g6j3 NOPE":             "gantry: host h7d2k9s4f1g6j3 has no GPU NOPE\n",
		"host gpu clear zzzzzzzzzzzzzz NOPE":             "gantry: no host has the id or name zzzzzzzzzzzzzz\n",
	} {
		if got, _ := gantry(t, setup{api: world()}, strings.Fields(args)...); got.Code != exitNotFound || got.Err != want {
			t.Errorf("gantry %s: %+v", args, got)
		}
	}
}
