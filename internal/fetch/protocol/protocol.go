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
	ExitRefused   = 3   // all is there but for keys that cannot be files
	ExitTimeout   = 124 // the time that the run was given is over, as timeout(1) says it
	ExitTemporary = 75  // EX_TEMPFAIL of sysexits(3): trying again may help
)

// SourceDir is where a loader of a claim sees it. No link in the claim leads a loader to
// anything else of its pod, such as its credentials.
const SourceDir = "/source"

// Paths of the loader's HTTP server.
const (
	// ProgressPath answers with the Status.
	ProgressPath = "/progress"
	// FinalQuery is the parameter of ProgressPath that asks a mirror to compare all files
	// once more, whatever it knows of them; its value is that of Status.Final after that. It
	// is RUN/N with the Status.Run of the mirror and a number, by which the caller tells its
	// requests apart; anything else is ignored.
	FinalQuery = "final"
	// ReadyPath answers 200 once the destination is usable, and 503 before.
	ReadyPath = "/ready"
)

// States of a run.
const (
	StateListing  = "listing"
	StateFetching = "fetching"
	// filesDone of filesTotal are uploaded as they are.
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
	// Notes are what people should know of a run although it succeeds.
	Notes []string `json:"notes,omitempty"`
	// Checks says how many files were verified by which check.
	Checks string `json:"checks,omitempty"`
	// Revision names the state of the source that is fetched: a commit, or a digest.
	Revision string `json:"revision,omitempty"`
	// Index is the digest of what a complete directory holds, if it was asked for: it says
	// to others what they copy from it.
	Index string `json:"index,omitempty"`
	// Contents identifies what was fetched: paths and content. It is the same wherever the
	// same is.
	Contents string `json:"contents,omitempty"`
	// OldVersions is how many versions before the current one are still there, see
	// VersionsDir.
	OldVersions int64 `json:"oldVersions,omitempty"`
	// ID is what the caller gave the run, and Run names the process: an address says
	// nothing about who answers.
	ID  string `json:"id,omitempty"`
	Run string `json:"run,omitempty"`
	// Passes is how often a mirror has seen that all there is was uploaded and verified. A
	// pass that adds to it may have begun long before.
	Passes int64 `json:"passes,omitempty"`
	// Final is the last FinalQuery that was answered: one of these passes has compared all
	// files, and began after it had been asked for.
	Final string `json:"final,omitempty"`
}

// MaxResult is how much of a termination message Kubernetes keeps, in bytes.
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
