# fish completion for gantry
complete -c gantry -f -a '(set -l words (commandline -opc) (commandline -ct); gantry __complete -- $words[2..-1] 2>/dev/null; or __fish_complete_path (commandline -ct))'
