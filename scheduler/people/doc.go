// Package people has what signing in takes: passwords, codes, bounds of attempts, and command lines that wait to be let in. It knows no
// record, and what it keeps is in memory: at a change of leader attempts are counted anew, and a command line asks again.
package people
