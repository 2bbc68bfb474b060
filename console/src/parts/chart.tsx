import { useEffect, useRef, useState } from 'preact/hooks'
import uPlot from 'uplot'

interface Props {
  label: string
  data: uPlot.AlignedData
  series: string[]
  max?: number
  bars?: boolean
  unit: string
}

const colours = ['--accent', '--good', '--warn', '--bad', '--dim', '--busy', '--text']

/** Counts the changes between light and dark: a canvas keeps the colours in which it was drawn. */
function useColours(): number {
  const [turn, again] = useState(0)
  useEffect(() => {
    const changed = () => again((n) => n + 1)
    const dark = matchMedia('(prefers-color-scheme: dark)')
    const chosen = new MutationObserver(changed)
    dark.addEventListener('change', changed)
    chosen.observe(document.documentElement, { attributeFilter: ['data-theme'] })
    return () => {
      dark.removeEventListener('change', changed)
      chosen.disconnect()
    }
  }, [])
  return turn
}

/** Values over time. The newest are told in words, too. */
export function Chart({ label, data, series, max, bars, unit }: Props) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot>()
  const drawn = useColours()
  useEffect(() => {
    const style = getComputedStyle(document.documentElement)
    const colour = (name: string) => style.getPropertyValue(name).trim()
    const axis = { stroke: colour('--dim'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line') } }
    plot.current = new uPlot({
      width: box.current!.clientWidth, height: 220, cursor: { y: false }, legend: { live: true },
      scales: { y: { range: (_u, low, high) => [Math.min(0, low ?? 0), max ?? Math.max((high ?? 0) * 1.1, 0.01)] } },
      axes: [axis, { ...axis, size: (_u, ticks) => 22 + 7 * Math.max(4, ...(ticks ?? []).map((t) => t.length)), values: (_u, ticks) => ticks.map((n) => `${n.toLocaleString('en-US', { maximumFractionDigits: 2 })} ${unit}`) }],
      series: [{}, ...series.map((name, i) => ({
        label: name, stroke: colour(colours[i % colours.length]!), width: 2, points: { show: false },
        value: (_u: uPlot, v: number | null) => (v === null || v === undefined ? '–' : `${v.toLocaleString('en-US', { maximumFractionDigits: 2 })} ${unit}`),
        ...(bars && { fill: colour(colours[i % colours.length]!), paths: uPlot.paths.bars!({ size: [0.7, 48] }) }),
      }))],
    }, data, box.current!)
    const look = new ResizeObserver(() => plot.current?.setSize({ width: box.current!.clientWidth, height: 220 }))
    look.observe(box.current!)
    return () => {
      look.disconnect()
      plot.current?.destroy()
    }
  }, [series.join(), drawn])
  useEffect(() => plot.current?.setData(data), [data])
  return <div class="chart" ref={box} role="img" aria-label={`${label}: ${series.map((s, i) => `${s} ${data[i + 1]?.at(-1) ?? '–'} ${unit}`).join(', ')}`} />
}
