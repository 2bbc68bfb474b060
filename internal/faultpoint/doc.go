// Package faultpoint names the places at which tests end the process by force: before and after each write that the
// agent relies on after a crash, and each effect that it may have to finish or to undo.
//
// In ordinary builds every function is empty and costs nothing. With the build tag faultpoints these variables of the
// environment have a meaning:
//
//	GANTRY_FAULTPOINT=NAME[:N]      the process kills itself, as kill -9 does, when it comes to NAME for the Nth time (1)
//	GANTRY_FAULTPOINT_FILE=FILE     the same, with NAME[:N] in a file that may come and change while the process runs
//	GANTRY_FAULTPOINT_LIST=FILE     the name of every point that is come to is added to FILE, one in a line
package faultpoint
