# bash completion for gantry
_gantry() {
    local IFS=$'\n'
    COMPREPLY=($(gantry __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [ ${#COMPREPLY[@]} -eq 0 ] && compopt -o default
}
complete -F _gantry gantry
