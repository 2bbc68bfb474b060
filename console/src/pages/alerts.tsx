import { useMemo } from 'preact/hooks'
import handbook from '../../../docs/alerts.md'
import type { Schemas } from '../api'
import { ofFleet, useLive, useRows } from '../live'
import { word } from '../route'
import { Badge, Card, Cli, Failure, Link, Page, Table, When } from '../ui'

type Host = Schemas['Host']

interface Alert {
  id: string
  name: string // of the rule in deploy/prometheus/alerts.yml
  of: string
  to: string // page
  text: string
  page: boolean // a person is needed now
  at?: string
}

const severities: Record<string, boolean> = Object.fromEntries([...handbook.matchAll(/^\| \[(\w+)\]\(\S+ \| (\w+) \|/gm)].map((m) => [m[1]!, m[2] === 'page']))

/** What the state of the fleet says by itself of the conditions that the rules of Prometheus watch. */
export function alerts(hosts: Host[], cluster?: Schemas['Cluster'], capacity?: Schemas['Capacity'], backends: Schemas['Backend'][] = [], gateways: Schemas['Gateway'][] = []): Alert[] {
  const out: Alert[] = []
  const add = (name: string, of: string, to: string, text: string, at?: string) => out.push({ id: `${name}/${of}/${text}`, name, of, to, text, page: severities[name] ?? false, at })
  for (const m of cluster?.members ?? []) if (m.problem || !m.reachable) add('GantryFewVoters', m.name, '/schedulers', m.problem ?? `silent for ${m.silentMs} ms`)
  if (cluster?.clock.held) add('GantryClockHeld', 'the log’s time', '/schedulers', cluster.clock.held)
  for (const h of hosts) {
    const to = `/hosts/${h.id}`
    if (h.state === 'unreachable') add('GantryHostUnreachable', h.name, to, 'The host is not heard.', h.stateSince ?? undefined)
    if (h.alarm) add('GantryHostTwice', h.name, to, h.alarm.text, h.alarm.at)
    for (const c of h.conditions) add('GantryHostCondition', h.name, to, c.text)
    for (const g of h.gpus) if (g.sick) add('GantryGPUSick', h.name, to, `${g.uuid}: ${g.sick}`)
  }
  // A problem of a single volume is not one of its storage.
  for (const b of backends) if (b.problem && !b.problem.startsWith('network volume ')) add('GantryVolumeBackendDown', b.id, '/backends', b.problem)
  for (const g of gateways) if (g.state === 'silent') add('GantryDown', g.name, '/gateways', 'The leader does not hear the gateway.', g.heardAt ?? undefined)
  for (const s of capacity?.stranded ?? []) add('GantryGPUsStranded', s.name, `/hosts/${s.hostId}`, `${s.gpus} × ${s.gpuTypeId} cannot be used, for want of ${s.short}.`)
  return out.sort((a, b) => Number(b.page) - Number(a.page))
}

/** Text of the handbook, with its code; it holds no other markup that is needed to read it. */
const Prose = ({ text }: { text: string }) => <>{text.replace(/\[([^\]]+)\]\([^)]*\)/g, '$1').split('`').map((t, i) => (i % 2 ? <code key={i}>{t}</code> : t))}</>

export function Alerts() {
  const hosts = useRows<Host>('/admin/v1/hosts', 'hosts', { kind: 'host', id: (h) => h.id, stream: ofFleet, keep: (h) => h.state !== 'gone' })
  const cluster = useLive<Schemas['Cluster']>('/admin/v1/cluster', (e) => e.kind === 'scheduler', ofFleet)
  const capacity = useLive<Schemas['Capacity']>('/admin/v1/capacity', (e) => e.kind === 'host', ofFleet)
  const backends = useLive<Schemas['BackendList']>('/admin/v1/volume-backends', (e) => e.kind === 'volume-backend', ofFleet)
  const gateways = useLive<Schemas['GatewayList']>('/admin/v1/gateways', (e) => e.kind === 'gateway', ofFleet)
  const list = useMemo(() => alerts(hosts.rows, cluster.value, capacity.value, backends.value?.backends, gateways.value?.gateways), [hosts.rows, cluster.value, capacity.value, backends.value, gateways.value])
  return (
    <Page wide title="Alerts">
      <Failure of={hosts.error ?? cluster.error} />
      <p class="dim">What the fleet says of itself now, under the names of the rules in <code>deploy/prometheus/alerts.yml</code>. Prometheus watches more of them, and for how long they last.</p>
      <Table label="alerts" rows={list} id={(a) => a.id} text={(a) => `${a.name} ${a.of} ${a.text}`} loading={hosts.loading} empty={<p class="empty">Nothing is wrong that the schedulers know of.</p>} columns={[
        { name: 'Alert', narrow: true, sort: (a) => a.name, cell: (a) => <Link to={`/runbooks?alert=${a.name}`}>{a.name}</Link> },
        { name: 'Severity', sort: (a) => Number(a.page), cell: (a) => <Badge of={a.page ? 'page' : 'ticket'} /> },
        { name: 'Where', narrow: true, sort: (a) => a.of, cell: (a) => <Link to={a.to}>{a.of}</Link> }, { name: 'What', narrow: true, cell: (a) => <span title={a.text}>{a.text}</span> }, { name: 'Since', cell: (a) => <When at={a.at} /> },
      ]} />
      <p><Link class="under" to="/runbooks">All runbooks</Link></p>
      <Cli line="gantry host list" />
    </Page>
  )
}

/** What to do about each alert, as docs/alerts.md has it. */
export function Runbooks() {
  const only = word('alert')
  const parts = handbook.split(/^## /m).slice(1).map((t) => [t.slice(0, t.indexOf('\n')).trim(), t.slice(t.indexOf('\n')).trim()] as const)
  return (
    <Page title="Runbooks" actions={<Link class="button" to="/alerts">Alerts</Link>}>
      {only && <p><Link class="under" to="/runbooks">All runbooks</Link></p>}
      {parts.filter(([name]) => !only || name === only).map(([name, text]) => <Card key={name} title={name}>{text.split(/\n\n+/).map((p) => <p key={p}><Prose text={p} /></p>)}</Card>)}
    </Page>
  )
}
