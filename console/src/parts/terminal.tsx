import { FitAddon } from '@xterm/addon-fit'
import { Terminal as Xterm } from '@xterm/xterm'
import { useEffect, useRef, useState } from 'preact/hooks'
import { Cli } from '../ui'
import { exec } from './exec'

// The terminal writes its colours into style elements, which the page's policy does not allow: here they are style sheets of the page.
const create = document.createElement.bind(document)
document.createElement = ((name: string, options?: ElementCreationOptions) => {
  if (name !== 'style') return create(name, options)
  const sheet = new CSSStyleSheet()
  document.adoptedStyleSheets.push(sheet)
  const element = create('span')
  element.hidden = true
  Object.defineProperty(element, 'textContent', { set: (text: string) => void sheet.replaceSync(text) })
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet)
    element.parentNode?.removeChild(element)
  }
  return element
}) as typeof document.createElement

export function Terminal({ pod }: { pod: string }) {
  const box = useRef<HTMLDivElement>(null)
  const [over, end] = useState<string>()
  const [turn, again] = useState(0)
  useEffect(() => {
    end(undefined)
    const term = new Xterm({
      fontFamily: 'ui-monospace, "DejaVu Sans Mono", Consolas, monospace', fontSize: 13, cursorBlink: true,
      scrollback: 5000, screenReaderMode: true, theme: { background: '#10151c', foreground: '#dfe6ee' },
    })
    // What a program writes gets no links to press and no clipboard, and does not name the window.
    for (const command of [0, 1, 2, 8, 52]) term.parser.registerOscHandler(command, () => true)
    const fit = new FitAddon()
    term.loadAddon(fit)
    term.open(box.current!)
    fit.fit()
    const session = exec(pod, {
      command: ['/bin/sh', '-c', 'if command -v bash >/dev/null 2>&1; then exec bash; fi; exec /bin/sh'],
      tty: true, stdin: true, term: 'xterm-256color', cols: term.cols, rows: term.rows,
    }, { output: (data) => term.write(data), end: (code, error) => end(error || `The shell ended with ${code}.`) })
    term.onData((data) => session.write(data))
    term.onBinary((data) => session.write(Uint8Array.from(data, (c) => c.charCodeAt(0))))
    term.onResize(({ cols, rows }) => session.resize(cols, rows))
    const look = new ResizeObserver(() => fit.fit())
    look.observe(box.current!)
    term.focus()
    return () => {
      look.disconnect()
      session.close()
      term.dispose()
    }
  }, [pod, turn])
  return (
    <>
      {over && <p class="note" role="status">{over} <button type="button" onClick={() => again((n) => n + 1)}>Open another</button></p>}
      <div class="terminal" ref={box} />
      <p class="dim">Tab and Shift+Tab go to the shell; the keys of the console do nothing in here.</p>
      <Cli line={`gantry pod exec -it ${pod} -- sh`} />
    </>
  )
}
