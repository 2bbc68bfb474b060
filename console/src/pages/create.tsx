import { useEffect, useMemo, useState } from 'preact/hooks'
import { ApiError, call, type Schemas } from '../api'
import { quote, usd } from '../format'
import { useLive } from '../live'
import { go, setWord, word } from '../route'
import { Badge, Card, Cli, Failure, Field, Page, attempt } from '../ui'
import { variables } from './pod'

type Request = Schemas['CreatePodRequest']
type Pod = Schemas['Pod']

interface Form {
  name: string
  template: string
  image: string
  args: string
  gpu: string // id; '' for a pod without GPUs
  count: number
  cpu: string
  vcpus: number
  cloud: 'SECURE' | 'COMMUNITY'
  center: string
  disk: number
  ports: string
  env: string
  volume: string
  path: string
  persistent: number
  interruptible: boolean
  bid: string
  network: boolean
  ssh: boolean
  registry: string
}

const fresh: Form = {
  name: '', template: '', image: '', args: '', gpu: '', count: 1, cpu: 'cpu3c', vcpus: 2, cloud: 'SECURE', center: '', disk: 10, ports: '', env: '', volume: '', path: '/workspace',
  persistent: 0, interruptible: false, bid: '', network: false, ssh: false, registry: '',
}

/** The request that a form makes. */
export function request(f: Form): Request {
  const out: Request = { name: f.name || 'pod' }
  if (f.image) out.image = f.image
  if (f.template) out.templateId = f.template
  if (f.args) out.args = f.args
  if (f.gpu) out.gpu = { id: f.gpu, count: f.count }
  else out.cpu = { id: f.cpu, vcpuCount: f.vcpus }
  if (f.gpu) out.cloud = f.cloud
  if (f.center) out.dataCenterIds = [f.center]
  if (f.disk && !f.template) out.disk = f.disk
  const ports = f.ports.split(/[\s,]+/).filter(Boolean)
  if (ports.length) out.ports = ports
  const env = variables(f.env)
  if (Object.keys(env).length) out.env = env
  if (f.volume) out.mounts = { network: [{ volumeId: f.volume, path: f.path }] }
  else if (f.persistent) out.mounts = { persistent: { size: f.persistent, path: f.path } }
  if (f.interruptible && f.gpu) {
    out.interruptible = true
    if (f.bid) out.bidPerGpu = Number(f.bid)
  }
  if (f.network) out.globalNetworking = true
  if (f.ssh) out.startSsh = true
  if (f.registry) out.registry = f.registry
  return out
}

/** The line of the gantry command that makes the same pod. */
function line(r: Request): string {
  const words = ['gantry pod create', quote(r.name), ...(typeof r.image === 'string' ? [quote(r.image)] : [])]
  if (r.gpu) words.push('--gpu', quote(r.gpu.id), '--count', String(r.gpu.count ?? 1))
  if (r.cloud) words.push('--cloud', r.cloud)
  if (r.cpu) words.push('--cpu', r.cpu.id, '--vcpu', String(r.cpu.vcpuCount))
  if (r.templateId) words.push('--template', quote(r.templateId))
  for (const c of r.dataCenterIds ?? []) words.push('--data-center', quote(c))
  for (const p of (r.ports ?? []) as string[]) words.push('--port', quote(p))
  for (const [k, v] of Object.entries(r.env ?? {})) words.push('--env', quote(`${k}=${v}`))
  if (r.disk) words.push('--disk', String(r.disk))
  if (r.registry) words.push('--registry', quote(r.registry))
  if (typeof r.args === 'string') words.push('--args', quote(r.args))
  for (const v of r.mounts?.network ?? []) words.push('--network-volume', quote(`${v.volumeId}:${v.path}`))
  if (r.mounts?.persistent) words.push('--persistent', quote(`${r.mounts.persistent.size}:${r.mounts.persistent.path}`))
  if (r.globalNetworking) words.push('--global-networking')
  if (r.startSsh) words.push('--ssh')
  if (r.interruptible) words.push('--interruptible', ...(r.bidPerGpu ? ['--bid', String(r.bidPerGpu)] : []))
  return words.join(' ')
}

export function CreatePod() {
  const [f, set] = useState<Form>(() => ({ ...fresh, template: word('template'), gpu: word('gpu') }))
  const change = (part: Partial<Form>) => set((was) => ({ ...was, ...part }))
  const [plan, planned] = useState<{ pod?: Pod; error?: ApiError }>({})
  const [busy, wait] = useState(false)
  const podChanged = (e: { kind: string }) => e.kind === 'pod'
  const gpus = useLive<Schemas['GPUList']>(`/v2/catalog/gpus?include=AVAILABILITY&product=POD&count=${f.count}&cloud=${f.cloud}`, podChanged)
  const cpus = useLive<Schemas['CPUList']>(`/v2/catalog/cpus?include=AVAILABILITY&product=POD`, podChanged)
  const templates = useLive<Schemas['TemplateList']>('/v2/templates', (e) => e.kind === 'template')
  const volumes = useLive<Schemas['NetworkVolumeList']>('/v2/network-volumes', (e) => e.kind === 'volume')
  const registries = useLive<Schemas['RegistryList']>('/v2/registries', (e) => e.kind === 'registry')
  const wanted = useMemo(() => request(f), [f])
  const key = JSON.stringify(wanted)
  const ready = !!(f.image || f.template)
  useEffect(() => {
    if (!ready) return planned({})
    const stop = new AbortController()
    const timer = setTimeout(() => {
      call('post', '/v2/pods', { body: wanted, query: { dryRun: true }, signal: stop.signal }).then(
        (pod) => planned({ pod }), (error) => stop.signal.aborted || planned({ error }))
    }, 350)
    return () => {
      clearTimeout(timer)
      stop.abort()
    }
  }, [key, gpus.value, cpus.value])
  const gpu = gpus.value?.gpus.find((g) => g.id === f.gpu)
  const centers = (f.gpu ? gpu?.dataCenters : cpus.value?.cpus.find((c) => c.id === f.cpu)?.dataCenters) ?? []
  const offered = (gpus.value?.gpus ?? []).filter((g) => (f.cloud === 'SECURE' ? g.secure : g.community)).sort((a, b) => Number(a.availability === 'NONE') - Number(b.availability === 'NONE') || a.memory - b.memory)
  const text = (name: keyof Form) => ({ value: f[name] as string, onInput: (e: { currentTarget: { value: string } }) => change({ [name]: e.currentTarget.value }) })
  const number = (name: keyof Form) => ({ type: 'number', value: f[name] as number, onInput: (e: { currentTarget: { valueAsNumber: number } }) => change({ [name]: e.currentTarget.valueAsNumber || 0 }) })
  const flag = (name: keyof Form, label: string) => <label class="check"><input type="checkbox" checked={f[name] as boolean} onChange={(e) => change({ [name]: e.currentTarget.checked })} />{label}</label>
  return (
    <Page title="New pod">
      <form class="split" onSubmit={async (e) => {
        e.preventDefault()
        wait(true)
        await attempt('The pod was created.', async () => {
          const pod = await call('post', '/v2/pods', { body: wanted, once: crypto.randomUUID() })
          go(`/pods/${pod.id}`)
        })
        wait(false)
      }}>
        <div>
          <Card title="What runs">
            <div class="columns">
              <Field label="Name"><input {...text('name')} required maxLength={191} placeholder="web" autoFocus /></Field>
              <Field label="Template"><select value={f.template} onChange={(e) => {
                change({ template: e.currentTarget.value })
                setWord('template', e.currentTarget.value)
              }}><option value="">None</option>{templates.value?.templates.map((t) => <option key={t.id} value={t.id}>{t.name}</option>)}</select></Field>
              <Field label="Image"><input {...text('image')} class="mono" required={!f.template} placeholder="docker.io/library/nginx:alpine" /></Field>
              <Field label="Registry credential"><select value={f.registry} onChange={(e) => change({ registry: e.currentTarget.value })}><option value="">None: the image is public</option>{registries.value?.registries.map((r) => <option key={r.id} value={r.id}>{r.name}</option>)}</select></Field>
            </div>
            <Field label="Arguments" hint="In place of the image’s own command."><input {...text('args')} class="mono" placeholder="python train.py" /></Field>
          </Card>
          <Card title="Compute">
            <div class="row apart">
              <label class="row"><input type="radio" name="kind" checked={!f.gpu} onChange={() => change({ gpu: '' })} />CPU alone</label>
              <label class="row"><input type="radio" name="kind" checked={!!f.gpu} onChange={() => change({ gpu: offered[0]?.id ?? '' })} />GPUs</label>
              {f.gpu && <>
                <label class="row">How many <input {...number('count')} min={1} max={64} style={{ width: '72px' }} /></label>
                <label class="row">Tier <select value={f.cloud} onChange={(e) => change({ cloud: e.currentTarget.value as Form['cloud'] })}><option>SECURE</option><option>COMMUNITY</option></select></label>
              </>}
              {!f.gpu && <label class="row">vCPUs <input {...number('vcpus')} min={1} max={256} style={{ width: '72px' }} /></label>}
            </div>
            <Failure of={gpus.error ?? cpus.error} />
            <div class="choices" role="group" aria-label="What is offered" tabIndex={0}>
              {f.gpu ? offered.map((g) => (
                <button key={g.id} type="button" class="choice" aria-pressed={g.id === f.gpu} onClick={() => change({ gpu: g.id })}>
                  <b>{g.name}</b><span class="dim">{g.memory} GB</span><span><span>{usd(f.cloud === 'SECURE' ? g.price.secure : g.price.community)} / h</span><Badge of={g.availability ?? 'NONE'} /></span>
                </button>)) : (cpus.value?.cpus ?? []).map((c) => (
                <button key={c.id} type="button" class="choice" aria-pressed={c.id === f.cpu} onClick={() => change({ cpu: c.id, vcpus: Math.max(c.vcpu.min, Math.min(c.vcpu.max, f.vcpus)) })}>
                  <b>{c.name}</b><span class="dim">{c.id}, {c.ramGbPerVcpu} GB for each vCPU</span><span><span>{usd(c.price.securePerVcpu, 3)} / vCPU h</span><Badge of={c.availability ?? 'NONE'} /></span>
                </button>))}
            </div>
          </Card>
          <Card title="Where">
            <div class="row apart">
              <label class="row"><input type="radio" name="center" checked={!f.center} onChange={() => change({ center: '' })} />Anywhere</label>
              {centers.map((c) => <label key={c.id} class="row"><input type="radio" name="center" checked={f.center === c.id} onChange={() => change({ center: c.id })} />{c.name} <Badge of={c.availability} /></label>)}
            </div>
          </Card>
          <Card title="Storage, ports, environment">
            <div class="columns">
              <Field label="Container disk, GB" hint="Emptied at every start."><input {...number('disk')} min={1} /></Field>
              <Field label="Network volume"><select value={f.volume} onChange={(e) => change({ volume: e.currentTarget.value })}><option value="">None</option>{volumes.value?.networkVolumes.map((v) => <option key={v.id} value={v.id}>{v.name} ({v.size} GB, {v.dataCenter})</option>)}</select></Field>
              {!f.volume && <Field label="Persistent mount, GB" hint="0: none. It stays while the pod is stopped."><input {...number('persistent')} min={0} /></Field>}
              {(f.volume || f.persistent > 0) && <Field label="Mounted at"><input {...text('path')} class="mono" /></Field>}
              <Field label="Ports" hint="Such as 8888/http, 22/tcp."><input {...text('ports')} class="mono" placeholder="80/http" /></Field>
            </div>
            <Field label="Environment" hint="One NAME=value a line. {{ GANTRY_SECRET_name }} is a secret of the account."><textarea class="code" rows={3} {...text('env')} /></Field>
            {flag('ssh', 'Start an SSH server in it')}
            {flag('network', 'Join the private network of the account')}
            {f.gpu && flag('interruptible', 'Interruptible: cheaper, and gives its place to pods on demand')}
            {f.gpu && f.interruptible && <Field label="Bid, USD per GPU and hour" hint="Empty: the least."><input type="number" step="0.001" min={0} {...text('bid')} /></Field>}
          </Card>
        </div>
        <aside class="price">
          <Card>
            {!ready && <p class="dim">Name an image or a template, and the price comes here.</p>}
            {plan.pod && <><b>{usd(plan.pod.cost, 3)}</b> <span class="dim">per hour</span>
              <p class="note ok" role="status">There is room for it now{plan.pod.dataCenterId ? ` in ${plan.pod.dataCenterId}` : ''}.</p>
              <p class="dim">{usd(plan.pod.cost * 24)} a day, {usd(plan.pod.cost * 730, 0)} a month</p></>}
            {plan.error && <div role="status"><h2>Why not</h2><Failure of={plan.error} /></div>}
            <button type="submit" class="primary" disabled={busy || !plan.pod}>Create the pod</button>
          </Card>
          <Cli line={line(wanted)} />
        </aside>
      </form>
    </Page>
  )
}
