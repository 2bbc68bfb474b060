module gantry/tools/dex

go 1.26.6
