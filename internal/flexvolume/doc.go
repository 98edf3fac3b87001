// Package flexvolume is the handler by which kubelet reaches the node engine:
// a program called with a verb and its arguments that answers with one line of
// JSON on stdout.
//
// kubelet reads stdout and stderr together as one JSON document, sets no deadline, and
// calls `init` under a lock of its own. So the real stdout is set aside first and all
// other output goes to the log, every call has a deadline here, and the reply to `init`
// is a constant.
package flexvolume
