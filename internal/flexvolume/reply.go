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

// A Reply is the reply to kubelet.
type Reply struct {
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

var (
	success = Reply{Status: statusSuccess}
	// notSupported has no message. kubelet compares the status and does not call the verb again until it probes
	// the driver again.
	notSupported = Reply{Status: statusNotSupported}
)

// initReply is the reply to `init`. It sets every capability, because kubelet takes a missing `attach` as true
// and a missing `supportsMetrics` as false.
//
//   - attach: nothing is attached to a node; kubelet calls `mount` for each pod.
//   - fsGroup: kubelet changes the files' group to the pod's fsGroup after `mount`.
//   - requiresFSResize: kubelet calls `expandfs`.
//   - selinuxRelabel: XFS stores a label for every file, and a new file system is
//     unlabeled, which a confined container may not even read. So the container
//     runtime has to label the files for the pod.
//   - supportsMetrics: kubelet calls statfs on the mount; because of the project
//     quota, it returns the requested size.
const initReply = `{"status":"Success","capabilities":{"attach":false,"fsGroup":true,"requiresFSResize":true,"selinuxRelabel":true,"supportsMetrics":true}}` + "\n"

// maxMessage is the maximum length of a message in bytes. kubelet puts it into an event of at most 1 KiB, and
// into its own log.
const maxMessage = 4096

// failure converts an error into a reply.
func failure(err error) Reply {
	return Reply{Status: statusFailure, Message: volume.Clip(err.Error(), maxMessage, " … (cut; all of it is in the driver's log)")}
}

// Line returns the reply as one line of JSON, with its line feed.
func (r Reply) Line() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // messages contain `a && b` and <names>
	if err := enc.Encode(r); err != nil {
		// Encoding two strings cannot fail. This keeps the contract if it did.
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
