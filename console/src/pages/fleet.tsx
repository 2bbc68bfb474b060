import { useMemo, useState } from 'preact/hooks'
import { call, type Schemas } from '../api'
import { quote, size } from '../format'
import { ofFleet, useLive, useOnce, useRows } from '../live'
import { attempt, Badge, Bar, Card, Cli, Dialog, Empty, Facts, Failure, Link, Page, Stat, Sure, Table, When, type Column } from '../ui'
import { Chart } from '../parts/chart'
import { go, setWord, word } from '../route'

type Host = Schemas['Host']

const useHosts = () => useRows<Host>('/admin/v1/hosts', 'hosts', { kind: 'host', id: (h) => h.id, stream: ofFleet, keep: (h) => h.state !== 'gone' })

const share = (used: number, total: number) => (total ? used / total : 0)
const rack = (h: Host) => h.labels.rack ?? ''

/** Each GPU of a host as a cell. How many are used is known, not which. */
function Cells({ of: h, heat }: { of: Host; heat?: number | null }) {
  let used = h.usedGpus
  return (
    <span class="cells" role="img" aria-label={`${h.usedGpus} of ${h.gpus.length} GPUs used${heat === undefined ? '' : `, ${heat === null ? 'not measured' : `${heat} % busy`}`}`}>
      {h.gpus.map((g) => {
        const state = g.sick ? 'sick' : g.cordoned ? 'cordoned' : used-- > 0 ? 'used' : ''
        const hot = heat !== undefined && state === 'used'
        return <i key={g.uuid} class={hot ? `used ${heat === null ? 'cold' : ''}` : state} style={hot && heat !== null ? { opacity: 0.15 + (0.85 * heat) / 100 } : undefined} title={`${g.type}: ${g.sick ?? g.cordoned ?? (state || 'free')}`} />
      })}
    </span>
  )
}

/** Free and stranded GPUs of all types, as the leader saw them. */
function History({ of: h }: { of: Schemas['CapacityHistory'] }) {
  const sum = (f: (g: Schemas['GPUsAt']) => number) => h.samples.map((s) => s.gpus.reduce((n, g) => n + f(g), 0))
  const most = h.samples.map((s) => Math.max(0, ...s.gpus.map((g) => g.mostOnOneHost)))
  const data = useMemo(() => [h.samples.map((s) => Date.parse(s.at) / 1000), sum((g) => g.total - g.free), sum((g) => g.free), sum((g) => g.stranded), most] as [number[], ...number[][]], [h])
  return <><Chart label="GPUs" unit="" series={['taken', 'free', 'stranded', 'most free on one host']} data={data} /><p class="dim">Every 5 minutes, as far as the leader runs so long. Longer histories are in Prometheus.</p></>
}

export function Map() {
  const hosts = useHosts()
  const capacity = useLive<Schemas['Capacity']>('/admin/v1/capacity', (e) => e.kind === 'host', ofFleet)
  const history = useOnce<Schemas['CapacityHistory']>('/admin/v1/capacity/history')
  const heat = useMemo(() => Object.fromEntries((capacity.value?.busy ?? []).map((b) => [b.hostId, b.gpuUtil])), [capacity.value])
  const [view, look] = useState(word('view'))
  const places = useMemo(() => {
    const by: { [name: string]: Host[] } = {}
    for (const h of [...hosts.rows].sort((a, b) => (a.name < b.name ? -1 : 1))) (by[`${h.dataCenterId}${rack(h) && `, rack ${rack(h)}`}`] ??= []).push(h)
    return Object.entries(by).sort(([a], [b]) => (a < b ? -1 : 1))
  }, [hosts.rows])
  const gpus = hosts.rows.flatMap((h) => h.gpus)
  const used = hosts.rows.reduce((n, h) => n + h.usedGpus, 0)
  return (
    <Page wide title="Fleet map">
      <Failure of={hosts.error} />
      <div class="stats">
        <Stat name="Hosts" value={hosts.rows.length} note={`${hosts.rows.filter((h) => h.state === 'ready').length} ready`} />
        <Stat name="GPUs used" value={`${used} of ${gpus.length}`} note={<Bar part={share(used, gpus.length)} label="GPUs used" />} />
        <Stat name="Sick GPUs" value={gpus.filter((g) => g.sick).length} /><Stat name="Alarms" value={hosts.rows.filter((h) => h.alarm).length} />
      </div>
      <p class="legend dim"><span><span class="cells"><i /></span>free</span><span><span class="cells"><i class="used" /></span>used</span><span><span class="cells"><i class="cordoned" /></span>cordoned</span><span><span class="cells"><i class="sick" /></span>sick</span>
        <label class="row">Colour by <select value={view} onChange={(e) => {
          look(e.currentTarget.value)
          setWord('view', e.currentTarget.value)
        }}><option value="">use</option><option value="heat">how busy they are</option></select></label>
        {view === 'heat' && <span>The fuller the colour of a used GPU, the busier its host’s are; hatched ones are not measured.</span>}</p>
      {places.map(([name, of]) => (
        <Card key={name} title={name}><div class="racks">{of.map((h) => (
          <Link key={h.id} to={`/hosts/${h.id}`} class="hostbox" title={h.takesNoPods ?? h.alarm?.text ?? ''}>
            <span><b>{h.name}</b><Badge of={h.eligibility === 'open' ? h.state : h.eligibility} /></span>
            <Cells of={h} heat={view === 'heat' ? (heat[h.id] ?? null) : undefined} />
            <span class="dim"><small>CPU</small><Bar part={share(h.used.milliCpu, h.total.milliCpu)} label={`CPU ${Math.round(share(h.used.milliCpu, h.total.milliCpu) * 100)} %`} /></span>
            <span class="dim"><small>{h.pods} {h.pods === 1 ? 'pod' : 'pods'}</small>{h.alarm && <span class="bad">alarm</span>}</span>
          </Link>))}</div></Card>
      ))}
      {hosts.rows.length === 0 && !hosts.loading && <Empty title="No host has joined yet." cli="gantry host token --data-center dev-1" />}
      {capacity.value && capacity.value.gpus.length > 0 && <Card title="Capacity and fragmentation">
        <div class="scroll"><table class="plain"><thead><tr><th scope="col">GPU type</th><th scope="col" class="number">Free</th><th scope="col" class="number">Most on a host</th>{['1', '2', '4', '8'].map((n) => <th key={n} scope="col" class="number">Pods of {n}</th>)}<th scope="col" class="number">Stranded</th></tr></thead>
          <tbody>{capacity.value.gpus.map((g) => <tr key={g.gpuTypeId}><th scope="row">{g.gpuTypeId}</th><td class="number">{g.free} of {g.total}</td><td class="number">{g.mostOnOneHost}</td>{(['1', '2', '4', '8'] as const).map((n) => <td key={n} class="number">{g.fit[n]}</td>)}<td class="number">{g.stranded.cpu + g.stranded.memory + g.stranded.disk}</td></tr>)}</tbody></table></div>
        {capacity.value.stranded.map((s) => <p key={s.hostId + s.gpuTypeId} class="dim">{s.name}: {s.gpus} × {s.gpuTypeId} cannot be used, for want of {s.short}.</p>)}
      </Card>}
      {history.value && history.value.samples.length > 1 && <Card title="Capacity and fragmentation over the last day"><History of={history.value} /></Card>}
      <Cli line="gantry host capacity" />
    </Page>
  )
}

const columns: Column<Host>[] = [
  { name: 'Name', narrow: true, sort: (h) => h.name, cell: (h) => <Link to={`/hosts/${h.id}`} title={h.id}>{h.name}</Link> },
  { name: 'State', narrow: true, sort: (h) => h.state, cell: (h) => <Badge of={h.state} /> },
  { name: 'Takes pods', sort: (h) => h.eligibility, cell: (h) => <span title={h.takesNoPods ?? ''}><Badge of={h.eligibility} /></span> },
  { name: 'Data center', sort: (h) => h.dataCenterId, cell: (h) => h.dataCenterId },
  { name: 'GPUs', number: true, sort: (h) => h.usedGpus, cell: (h) => `${h.usedGpus} / ${h.gpus.length}` },
  { name: 'CPU', cell: (h) => <Bar part={share(h.used.milliCpu, h.total.milliCpu)} label="CPU" /> },
  { name: 'Memory', cell: (h) => <Bar part={share(h.used.memoryMb, h.total.memoryMb)} label="Memory" /> },
  { name: 'Pods', number: true, sort: (h) => h.pods, cell: (h) => h.pods },
  { name: 'Agent', cell: (h) => h.agentVersion ?? '–' },
  { name: 'Alarm', sort: (h) => h.alarm?.text ?? '', cell: (h) => h.alarm && <span class="bad">{h.alarm.text}</span> },
]

export function Hosts() {
  const hosts = useHosts()
  return (
    <Page wide title="Hosts"><Failure of={hosts.error} />
      <Table label="hosts" rows={hosts.rows} columns={columns} id={(h) => h.id} loading={hosts.loading} text={(h) => `${h.name} ${h.id} ${h.state} ${h.eligibility} ${h.dataCenterId} ${Object.entries(h.labels).join(' ')}`} empty={<Empty title="No host has joined yet." cli="gantry host token --data-center dev-1" />} />
    </Page>
  )
}

function PodTable({ of: list }: { of: Schemas['HostPod'][] }) {
  return (
    <table class="plain"><thead><tr><th scope="col">Pod</th><th scope="col">Account</th><th scope="col">Status</th><th scope="col" class="number">GPUs</th><th scope="col">A drain</th></tr></thead>
      <tbody>{list.map((p) => <tr key={p.id}><td class="mono">{p.id}</td><td class="mono">{p.accountId}</td><td><Badge of={p.status} /></td><td class="number">{p.gpus}</td><td>{p.to ? `moves it to ${p.to}` : p.stops ? 'with force, stops it' : p.waits ?? (p.moving ? 'moves it' : '–')}</td></tr>)}</tbody></table>
  )
}

/** A drain, after one has seen what it would do. */
function Drain({ of: h, close, done }: { of: Host; close(): void; done(): void }) {
  const [keep, set] = useState(false)
  const [force, hard] = useState(false)
  const plan = useOnce<Schemas['HostPodList']>(`/admin/v1/hosts/${h.id}/drain?keepRunning=${keep}`)
  const pods = plan.value?.pods ?? []
  return (
    <Dialog title={`Drain ${h.name}`} close={close}>
      <Failure of={plan.error} />
      <label class="check"><input type="checkbox" checked={keep} onChange={(e) => set(e.currentTarget.checked)} />Let its pods run, and only take no new ones</label>
      <label class="check"><input type="checkbox" checked={force} onChange={(e) => hard(e.currentTarget.checked)} />Force: stop pods that cannot be moved</label>
      <h2>What it would do</h2>
      {plan.value && (pods.length === 0 ? <p class="dim">The host has no pods: nothing happens to anybody.</p> : <div class="scroll"><PodTable of={pods} /></div>)}
      <footer><button type="button" onClick={close}>Cancel</button><button type="button" class="danger" disabled={!plan.value} onClick={() => void attempt(`${h.name} is being drained.`, async () => {
        await call('post', '/admin/v1/hosts/{id}/drain', { path: { id: h.id }, body: { keepRunning: keep, force } })
        close()
        done()
      })}>Drain</button></footer>
      <Cli line={`gantry host drain ${quote(h.name)}${keep ? ' --keep-running' : ''}${force ? ' --force' : ''}`} />
    </Dialog>
  )
}

export function HostPage({ args: [id] }: { args: string[] }) {
  const host = useLive<Host>(`/admin/v1/hosts/${encodeURIComponent(id!)}`, (e) => e.kind === 'host' && e.id === id, ofFleet)
  const pods = useLive<Schemas['HostPodList']>(`/admin/v1/hosts/${encodeURIComponent(id!)}/pods`, (e) => e.kind === 'host' && e.id === id, ofFleet)
  const [draining, drain] = useState(false)
  const h = host.value
  if (!h) return <Page title="Host"><Failure of={host.error} /></Page>
  const path = { id: h.id }
  const after = () => {
    host.reload()
    pods.reload()
  }
  const act = (what: string, f: () => Promise<unknown>) => void attempt(what, () => f().then(after))
  return (
    <Page title={h.name} actions={<><Badge of={h.state} /><Badge of={h.eligibility} />
      {h.eligibility === 'open' ? <Sure kind="" label="Cordon" ask={<p><b>{h.name}</b> takes no new pods. Its {h.pods} pods run on.</p>} act={() => act(`${h.name} takes no new pods.`, () => call('post', '/admin/v1/hosts/{id}/cordon', { path }))} />
        : <button type="button" onClick={() => act(`${h.name} takes pods again.`, () => call('post', '/admin/v1/hosts/{id}/uncordon', { path }))}>Uncordon</button>}
      {h.eligibility !== 'draining' && <button type="button" onClick={() => drain(true)}>Drain…</button>}
      <Sure label="Fence" word={h.name} ask={<p>Say that this host is dead for certain. Its pods ({h.pods} now, listed below) are given up; if it still runs, they run twice until it hears of it.</p>} act={() => act(`${h.name} was fenced.`, () => call('post', '/admin/v1/hosts/{id}/fence', { path }))} />
      <Sure label="Remove" word={h.name} ask={<p>The host is forgotten. It must join again to come back.</p>} act={() => void attempt(`${h.name} was removed.`, () => call('delete', '/admin/v1/hosts/{id}', { path }).then(() => go('/hosts')))} /></>}>
      {draining && <Drain of={h} close={() => drain(false)} done={after} />}
      {h.takesNoPods && <p class="note">{h.takesNoPods}</p>}
      {h.alarm && <p class="note bad">{h.alarm.text} <When at={h.alarm.at} /> <button type="button" onClick={() => act('The alarm was acknowledged.', () => call('post', '/admin/v1/hosts/{id}/ack-alarm', { path }))}>Acknowledge</button></p>}
      {h.conditions.map((c) => <p key={c.code} class={`note ${c.severe ? 'bad' : ''}`}>{c.text}</p>)}
      <Card title="Hardware"><Facts of={[
        ['Id', <code key="i">{h.id}</code>], ['Data center', h.dataCenterId], ['Tier', h.cloud.toLowerCase()], ['Kernel', h.kernel], ['Runtime', h.runtime], ['Driver', h.driver], ['CUDA', h.cuda], ['Agent', h.agentVersion], ['Address', h.publicIp],
        ['CPU', <span key="c">{h.used.milliCpu / 1000} of {h.total.milliCpu / 1000} vCPU <Bar part={share(h.used.milliCpu, h.total.milliCpu)} label="CPU" /></span>],
        ['Memory', <span key="m">{size(h.used.memoryMb * 1e6)} of {size(h.total.memoryMb * 1e6)} <Bar part={share(h.used.memoryMb, h.total.memoryMb)} label="Memory" /></span>],
        ['Disk', <span key="d">{h.used.diskGb} of {h.total.diskGb} GB <Bar part={share(h.used.diskGb, h.total.diskGb)} label="Disk" /></span>],
        ['Roles', h.roles.join(', ')], ['Volumes', h.volumes.join(', ')], ['Labels', Object.entries(h.labels).map(([k, v]) => `${k}=${v}`).join(', ')], ['Joined', <When key="j" at={h.joinedAt} />],
      ]} /></Card>
      {h.gpus.length + h.goneGpus.length > 0 && <Card title="GPUs"><div class="scroll"><table class="plain"><thead><tr><th scope="col">GPU</th><th scope="col">Type</th><th scope="col" class="number">NUMA</th><th scope="col">State</th><th /></tr></thead><tbody>{h.gpus.map((g) => {
        const at = { id: h.id, gpu: g.uuid }
        return (
          <tr key={g.uuid}><td class="mono">{g.uuid}</td><td>{g.type}{g.simulated && ' (simulated)'}</td><td class="number">{g.numa}</td><td>{g.sick ? <span class="bad">{g.sick}</span> : g.cordoned ? `cordoned: ${g.cordoned}` : <span class="good">well</span>}</td>
            <td>{g.cordoned ? <button type="button" onClick={() => act('The GPU is used again.', () => call('post', '/admin/v1/hosts/{id}/gpus/{gpu}/uncordon', { path: at }))}>Uncordon</button>
              : <button type="button" onClick={() => act('The GPU takes no new pods.', () => call('post', '/admin/v1/hosts/{id}/gpus/{gpu}/cordon', { path: at, body: { reason: 'from the console' } }))}>Cordon</button>}
            </td></tr>)
      })}{h.goneGpus.map((g) => (
        <tr key={g.uuid}><td class="mono">{g.uuid}</td><td>{g.type}</td><td /><td>gone, cordoned: {g.reason}</td>
          <td><Sure kind="" label="Clear" ask={<p>The host has this GPU no more, as after it was replaced. Its cordon is forgotten.</p>} act={() => act('The GPU was forgotten.', () => call('post', '/admin/v1/hosts/{id}/gpus/{gpu}/clear', { path: { id: h.id, gpu: g.uuid } }))} /></td></tr>))}</tbody></table></div></Card>}
      <Card title={`Pods (${h.pods})`}><Failure of={pods.error} />{pods.value && (pods.value.pods.length === 0 ? <p class="dim">None.</p> : <div class="scroll"><PodTable of={pods.value.pods} /></div>)}</Card>
      <Cli line={`gantry host get ${quote(h.name)}`} />
    </Page>
  )
}

export function Schedulers() {
  const cluster = useLive<Schemas['Cluster']>('/admin/v1/cluster', (e) => e.kind === 'scheduler', ofFleet)
  const ca = useOnce<Schemas['CAStatus']>('/admin/v1/ca')
  const c = cluster.value
  const act = (what: string, f: () => Promise<unknown>) => void attempt(what, () => f().then(cluster.reload))
  return (
    <Page title="Schedulers" actions={<button type="button" onClick={cluster.reload}>Read again</button>}>
      <Failure of={cluster.error} />
      {c && <>
        <Card title="Members"><div class="scroll"><table class="plain"><thead><tr><th scope="col">Scheduler</th><th scope="col">Raft</th><th scope="col" class="number">Applied</th><th scope="col" class="number">Behind</th><th scope="col" class="number">Clock</th><th scope="col">Version</th><th scope="col">State</th><th /></tr></thead><tbody>{c.members.map((m) => (
          <tr key={m.id}><th scope="row">{m.name} <code>{m.id}</code><br /><span class="mono">{m.address}</span></th><td>{m.leader ? 'leads' : m.voter ? 'votes' : 'follows'}</td><td class="number">{m.applied}</td><td class="number">{m.lag}</td><td class="number">{m.clockMs === null ? '–' : `${m.clockMs} ms`}</td><td>{m.version}</td>
            <td>{m.problem ? <span class="bad">{m.problem}</span> : m.reachable ? <span class="good">well</span> : <span class="bad">silent for {m.silentMs} ms</span>}</td>
            <td>{!m.leader && m.voter && <Sure kind="" label="Make it lead" ask={<p>{m.name} takes over at once. Requests under way are answered.</p>} act={() => act('Leadership was handed over.', () => call('post', '/admin/v1/cluster/transfer', { body: { memberId: m.id } }))} />}</td></tr>))}</tbody></table></div></Card>
        <Card title="Cluster"><Facts of={[['Id', <code key="i">{c.id}</code>], ['Feature level', c.level], ['Clock', c.clock.held ? <span class="bad" key="c">{c.clock.held}</span> : 'sure']]} /></Card>
      </>}
      {ca.value && <Card title="Certificate authorities"><div class="scroll"><table class="plain"><tbody>{ca.value.cas.map((x) => <tr key={x.digest}><td class="mono">{x.digest.slice(0, 24)}…</td><td>{x.state}</td><td>ends <When at={x.notAfter} /></td></tr>)}</tbody></table></div>{ca.value.step && <p class="note">{ca.value.step}: {ca.value.waiting} of {ca.value.total} nodes are waited for.</p>}</Card>}
      <Cli line="gantry raft members" />
    </Page>
  )
}
