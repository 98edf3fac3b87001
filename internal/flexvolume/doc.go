// Package flexvolume is the FlexVolume driver through which kubelet calls the node engine: a program that is
// executed with a verb and its arguments and prints one line of JSON to stdout.
//
// kubelet parses stdout and stderr together as one JSON document, sets no deadline, and runs `init` under a
// lock of its own. So the driver first duplicates stdout and redirects all other output to the log, sets a
// deadline for every call, and replies to `init` with a constant.
package flexvolume
