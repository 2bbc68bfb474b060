import type { Schemas } from '../api'
import { moment, size } from '../format'
import { useLive } from '../live'
import { VolumeFiles } from '../parts/volumefiles'
import { Badge, Bar, Card, Copy, Facts, Failure, Page } from '../ui'
import { Grow } from './nouns'

export function VolumePage({ args: [id] }: { args: string[] }) {
  const volume = useLive<Schemas['NetworkVolume']>(`/v2/network-volumes/${encodeURIComponent(id!)}`, (e) => e.kind === 'volume' && e.id === id)
  const v = volume.value
  if (!v) return <Page title="Volume"><Failure of={volume.error} /></Page>
  return (
    <Page title={v.name} actions={<><Badge of={v.status} /><Grow of={v} /></>}>
      <p class="dim"><code>{v.id}</code> <Copy text={v.id} /></p>
      {v.statusReason && <p class="note">{v.statusReason}</p>}
      <Card><Facts of={[
        ['Data center', v.dataCenter], ['Tier', v.type.replace('_', ' ').toLowerCase()], ['Size', `${v.size} GB`],
        ['Used', v.used !== null && <span key="u">{size(v.used)} <Bar part={v.used / (v.size * 1e9)} label={size(v.used)} /></span>], ['Created', moment(v.createdAt)],
      ]} /></Card>
      {v.status === 'CREATING' ? <p class="note">Its storage is being made.</p> : <VolumeFiles of={v} />}
    </Page>
  )
}
