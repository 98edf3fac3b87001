package flexvolume

import (
	"bytes"
	"encoding/json"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Statuses that kubelet knows.
const (
	statusSuccess      = "Success"
	statusFailure      = "Failure"
	statusNotSupported = "Not supported"
)

// A Reply is the answer to kubelet.
type Reply struct {
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

var (
	success = Reply{Status: statusSuccess}
	// notSupported carries no message: kubelet compares the status and remembers
	// for this verb, until it looks at the driver anew, not to ask again.
	notSupported = Reply{Status: statusNotSupported}
)

// initReply answers `init`. It names every capability, because kubelet takes a
// missing `attach` for true and a missing `supportsMetrics` for false.
//
//   - attach: nothing is attached to a node; kubelet calls `mount` for each pod.
//   - fsGroup: kubelet gives the files to the pod's fsGroup after `mount`.
//   - requiresFSResize: kubelet calls `expandfs`.
//   - selinuxRelabel: an XFS of our own keeps a label on every file, and a fresh
//     one is unlabeled, which a confined container may not even read. So the
//     container runtime must label the files for the pod.
//   - supportsMetrics: kubelet calls statfs on the mount; project quota makes it
//     tell the size that was asked for.
const initReply = `{"status":"Success","capabilities":{"attach":false,"fsGroup":true,"requiresFSResize":true,"selinuxRelabel":true,"supportsMetrics":true}}` + "\n"

// maxMessage bounds a message. kubelet puts it into an event of at most 1 KiB,
// and into its own log.
const maxMessage = 4096

// failure turns an error into a reply.
func failure(err error) Reply {
	return Reply{Status: statusFailure, Message: volume.Clip(err.Error(), maxMessage, " … (cut; all of it is in the driver's log)")}
}

// Line returns the reply as one line of JSON, with its line feed.
func (r Reply) Line() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // a message speaks of `a && b` and <names>
	if err := enc.Encode(r); err != nil {
		// Two strings cannot fail to encode; this keeps the contract if they could.
		return []byte(`{"status":"Failure","message":"internal error: cannot encode the reply"}` + "\n")
	}
	return b.Bytes()
}

// ExitCode returns the exit code of the process.
func (r Reply) ExitCode() int {
	if r.Status == statusSuccess {
		return 0
	}
	return 1
}
