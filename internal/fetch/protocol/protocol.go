// Package protocol is the contract between the loader of a dataset and its callers: its
// progress, its result, and where it reports them. It imports only the standard library,
// so that the controller of datasets need not link the loader.
package protocol

import (
	"encoding/json"
	"strings"
)

// Exit codes, which Jobs rely on.
const (
	ExitComplete  = 0
	ExitFailed    = 1
	ExitUsage     = 2
	ExitRefused   = 3   // complete, except for keys that cannot be files
	ExitTimeout   = 124 // the run's time limit has passed, as in timeout(1)
	ExitTemporary = 75  // EX_TEMPFAIL of sysexits(3): a retry may help
)

// SourceDir is where a loader finds the claim that is its source. No link in the claim can lead a
// loader to anything else in its pod, such as its credentials.
const SourceDir = "/source"

// Paths of the loader's HTTP server.
const (
	// ProgressPath returns the Status.
	ProgressPath = "/progress"
	// FinalQuery is the parameter of ProgressPath that asks a mirror to compare all files once more,
	// whatever it knows of them. Status.Final has its value afterwards. The value is RUN/N: the
	// Status.Run of the mirror, and a number by which the caller distinguishes its requests; any other
	// value is ignored.
	FinalQuery = "final"
	// ReadyPath returns 200 once the destination is usable, and 503 before.
	ReadyPath = "/ready"
)

// States of a run.
const (
	StateListing  = "listing"
	StateFetching = "fetching"
	// StateMirroring: filesDone of filesTotal are uploaded in their present state.
	StateMirroring = "mirroring"
	StateComplete  = "complete"
	StateFailed    = "failed"
)

// Status is the progress of a run: the JSON of ProgressPath, of progress lines and of the
// result.
type Status struct {
	State      string `json:"state"`
	FilesDone  int64  `json:"filesDone"`
	FilesTotal int64  `json:"filesTotal"`
	// BytesDone counts bytes that have arrived or were there before.
	BytesDone      int64  `json:"bytesDone"`
	BytesTotal     int64  `json:"bytesTotal"`
	BytesPerSecond int64  `json:"bytesPerSecond"`
	ETASeconds     int64  `json:"etaSeconds"`
	Refused        int64  `json:"refused"`
	Ready          bool   `json:"ready"`
	Retryable      bool   `json:"retryable"`
	Message        string `json:"message"`
	// Notes are what people should know about a run although it succeeds.
	Notes []string `json:"notes,omitempty"`
	// Checks is how many files were verified by which check.
	Checks string `json:"checks,omitempty"`
	// Revision names the fetched state of the source: a commit, or a digest.
	Revision string `json:"revision,omitempty"`
	// Index is the digest of a complete directory's index, if it was requested. Loaders that copy from
	// the directory verify the index by it.
	Index string `json:"index,omitempty"`
	// Contents identifies the fetched paths and their content. It is the same wherever these are the
	// same.
	Contents string `json:"contents,omitempty"`
	// OldVersions is how many versions before the current one still exist, see VersionsDir.
	OldVersions int64 `json:"oldVersions,omitempty"`
	// ID is what the caller named the run, and Run names the process: an address alone does not
	// identify the process behind it.
	ID  string `json:"id,omitempty"`
	Run string `json:"run,omitempty"`
	// Passes is how often a mirror has found all files uploaded and verified. The pass that increments
	// it may have begun long before.
	Passes int64 `json:"passes,omitempty"`
	// Final is the last FinalQuery that was fulfilled: a pass that began after the request has compared
	// all files.
	Final string `json:"final,omitempty"`
}

// MaxResult is how many bytes of a termination message Kubernetes keeps.
const MaxResult = 4096

// Result returns the status as one line of JSON of at most MaxResult bytes; too long a
// message is truncated.
func (s Status) Result() ([]byte, error) {
	for {
		data, err := json.Marshal(s)
		if err != nil || len(data) < MaxResult {
			return append(data, '\n'), err
		}
		if len(s.Notes) > 0 && len(s.Message) < MaxResult/2 {
			s.Notes = s.Notes[:len(s.Notes)-1]
			continue
		}
		s.Message = strings.ToValidUTF8(s.Message[:len(s.Message)*3/4], "") + "…"
	}
}
