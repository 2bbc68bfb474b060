import { useMemo } from 'preact/hooks'
import type { Schemas } from '../api'
import { me } from '../signin'
import { usd } from '../format'
import { useLive, useRows } from '../live'
import { useStore } from '../store'
import { Badge, Bar, Card, Cli, Empty, Failure, Link, Page, Stat, When } from '../ui'

type Pod = Schemas['Pod']

const names: Record<string, string> = {
  runningPods: 'Running pods', gpus: 'GPUs', vcpus: 'vCPUs', networkVolumeGB: 'Volumes, GB', endpoints: 'Endpoints', workers: 'Workers', clusters: 'Clusters', spendPerHour: 'USD per hour',
}

export function Overview() {
  const who = useStore(me)
  const account = useLive<Schemas['Account']>('/v2/account', (e) => e.kind === 'account' || e.kind === 'balance' || e.kind === 'pod' || e.kind === 'volume')
  const pods = useRows<Pod>('/v2/pods', 'pods', { kind: 'pod', id: (p) => p.id, keep: (p) => p.status !== 'TERMINATED' })
  const counts = useMemo(() => {
    const by = new Map<string, number>()
    for (const p of pods.rows) by.set(p.status, (by.get(p.status) ?? 0) + 1)
    return [...by].sort()
  }, [pods.rows])
  const troubled = pods.rows.filter((p) => p.status === 'ERROR' || p.condition || (p.statusReason && p.status !== 'EXITED')).slice(0, 8)
  const a = account.value
  return (
    <Page title="Overview" actions={<Link to="/pods/new" class="button primary">New pod</Link>}>
      <Failure of={account.error?.status === 403 ? undefined : account.error} />
      {account.error?.status === 403 && <p class="note">This key may not read the account: what it may do is in the pages beside.</p>}
      {a && (
        <div class="stats">
          <Stat name="Balance" value={usd(a.balance)} note={a.prepaid ? 'prepaid' : 'metered'} />
          <Stat name="Now" value={`${usd(a.hourlyRate, 2)} / h`} note={`${usd(a.hourlyRate * 730)} in a month if it stays so; ${a.spendLimit === null ? 'no spend limit' : `limit ${usd(a.spendLimit)} / h`}`} />
          <Stat name="Pods" value={pods.rows.length.toLocaleString()} note={counts.map(([s, n]) => `${n} ${s.toLowerCase()}`).join(', ') || 'none'} />
          <Stat name="GPUs in use" value={a.limits.gpus.used} note={`of ${a.limits.gpus.limit}`} />
        </div>
      )}
      <div class="grid">
        <Card title="Needs a look" actions={<Link to="/pods">All pods</Link>}>
          {troubled.length === 0 ? <p class="dim">Nothing: no pod has failed or waits.</p> : (
            <table class="plain"><tbody>{troubled.map((p) => (
              <tr key={p.id}><td><Link to={`/pods/${p.id}`} class="under">{p.name}</Link></td><td><Badge of={p.status} /></td><td>{p.condition?.text ?? p.statusReason}</td></tr>
            ))}</tbody></table>
          )}
        </Card>
        {a && (
          <Card title="Limits">
            <table class="plain"><tbody>{Object.entries(a.limits).filter(([k]) => names[k]).map(([k, l]) => (
              <tr key={k}><th scope="row">{names[k]}</th><td><Bar part={l.limit ? l.used / l.limit : 0} label={`${l.used} of ${l.limit}`} /></td><td class="number">{Number(l.used.toFixed(2)).toLocaleString()} / {l.limit >= 1e9 ? '∞' : l.limit.toLocaleString()}</td></tr>
            ))}</tbody></table>
          </Card>
        )}
      </div>
      {pods.rows.length === 0 && !pods.loading && !pods.error && <Empty title="You have no pods yet." cli="gantry pod create web docker.io/library/nginx:alpine --cpu cpu3c --vcpu 2 --port 80/http --wait"><p><Link to="/pods/new" class="button primary">Create one</Link></p></Empty>}
      {pods.rows.length > 0 && (
        <Card title="Newest pods">
          <table class="plain"><tbody>{[...pods.rows].sort((x, y) => (x.createdAt < y.createdAt ? 1 : -1)).slice(0, 6).map((p) => (
            <tr key={p.id}><td><Link to={`/pods/${p.id}`} class="under">{p.name}</Link></td><td><Badge of={p.status} /></td><td class="number">{usd(p.cost)} / h</td><td class="dim"><When at={p.createdAt} /></td></tr>
          ))}</tbody></table>
        </Card>
      )}
      <p class="dim">{who?.operator ? 'This key is an operator’s: the fleet’s pages are below the others.' : 'The same on the command line:'}</p>
      <Cli line={who?.operator ? 'gantry host list' : 'gantry account show'} />
    </Page>
  )
}
