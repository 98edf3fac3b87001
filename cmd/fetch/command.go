package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/flexlvm/flexlvm/internal/fetch"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/logging"
	"github.com/flexlvm/flexlvm/internal/version"
)

// options are the flags of all verbs.
type options struct {
	access        s3store.Config
	style         string
	name          string
	include       []string
	exclude       []string
	versions      string
	paths         []string
	elsewhere     []string
	orObject      bool
	keepChanged   bool
	checksum      string
	sync          bool
	parallel      int
	memory        string
	bandwidth     string
	order         string
	orderFile     string
	capacityCheck bool
	attempts      int
	stall         time.Duration
	timeout       time.Duration
	progress      string
	listen        string
	readyAfter    string
	index         bool
	peers         peerOptions
	result        string
	logLevel      string
}

const long = `fetch fills the directory DEST with the objects of SOURCE:

  s3://bucket/key                        one object
  s3://bucket/prefix/                    all objects below a prefix
  s3://bucket/a/**/*.csv                 all objects that match a pattern
  pachyderm://[project/]repo@branch/path through Pachyderm's S3 gateway
  gs://bucket/prefix/                    Google Cloud Storage
  azblob://account/container/prefix/     Azure Blob Storage
  hf://[datasets/]org/name[@revision]    a model or dataset of the Hugging Face Hub
  oci://registry/repository[:tag|@digest] an artifact or an image
  https://host/list                      the files in a list
  file:///path/                          another directory

A file appears under its name once it is complete, verified and on disk. A run
that was stopped in any way resumes when fetch is run again.
DEST/.flexlvm/manifest.jsonl lists the complete files; DEST/.flexlvm/complete
exists once all are complete.

Credentials come from the environment (AWS_ACCESS_KEY_ID and so on), the shared
files, web identity, the machine's role, or --credentials-dir.

Exit codes: 0 complete; 3 complete except for refused keys; 1 failed, a retry does
not help; 2 invalid usage; 75 failed, a retry may help; 124 --timeout has expired.`

func command() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:           "fetch [flags] SOURCE DEST",
		Short:         "Fill a directory with a dataset",
		Long:          long,
		Version:       version.String,
		Args:          cobra.ExactArgs(2),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.runSession(cmd, func(ctx context.Context, s *session) error { return s.fetch(ctx, args[0], args[1]) })
		},
	}
	o.shared(cmd)
	o.fetching(cmd)
	cmd.AddCommand(putCommand(), mirrorCommand(), prepareCommand(), serveCommand())
	return cmd
}

// fetching adds the flags of fetch alone.
func (o *options) fetching(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.access.Version, "version-id", "", "version ID of the object, if SOURCE is a single object")
	f.StringVar(&o.name, "name", "", "path in DEST of the object, if SOURCE is a single object (default: the last part of its key)")
	f.StringArrayVar(&o.include, "include", nil, "fetch only paths that match this pattern; a pattern without a slash is compared with base names; may be repeated")
	f.StringArrayVar(&o.exclude, "exclude", nil, "do not fetch paths that match this pattern; may be repeated")
	f.StringArrayVar(&o.paths, "path", nil, "fetch only paths that match this pattern as a whole, in which * and ? also match slashes; may be repeated")
	f.StringArrayVar(&o.elsewhere, "elsewhere", nil, "pattern, as for --path, that another run fetches; objects that match no --path and no --elsewhere are counted and reported; may be repeated")
	f.BoolVar(&o.orObject, "or-object", false, "if SOURCE ends in a slash and has only folder markers below it, fetch the object whose key is SOURCE without the slash")
	f.StringVar(&o.checksum, "checksum", fetch.ChecksumIfPresent, "verification of content: required, ifPresent (the strongest checksum that the source provides) or none (compare only sizes)")
	f.BoolVar(&o.sync, "sync", false, "check SOURCE for changes even if DEST is complete, and delete fetched files that SOURCE no longer has")
	f.BoolVar(&o.keepChanged, "keep-changed", false, "replace nothing that was changed or created in DEST while or after it was fetched; not with --sync or --versions")
	f.StringVar(&o.bandwidth, "bandwidth", "0", "maximum rate in bytes per second, such as 100Mi; 0: no limit")
	f.StringVar(&o.order, "order", fetch.OrderName, "order in which files are fetched: name, size (small files first) or list")
	f.StringVar(&o.orderFile, "order-file", "", "file with paths, one per line, in the order for --order=list")
	f.BoolVar(&o.capacityCheck, "capacity-check", true, "fail immediately if DEST has too little free space")
	f.StringVar(&o.readyAfter, "ready-after", "", "amount after which /ready returns 200: a number of files such as 10, or bytes with a unit such as 100Mi; empty: all")
	f.BoolVar(&o.index, "index", false, "compute the SHA-256 of each file at the end, and report the digest of the list of them, with which other runs can copy from DEST; see serve")
	f.StringArrayVar(&o.peers.addresses, "peer", nil, "HOST:PORT of a fetch serve that has all of SOURCE: copy from it, and send no requests to SOURCE; may be repeated")
	f.StringVar(&o.peers.digest, "peer-index", "", "digest of the files to copy with --peer, from the status of the run that fetched them with --index")
	o.peers.identify(cmd)
}

// shared adds the flags of every verb.
func (o *options) shared(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.access.Endpoint, "endpoint", "", "URL of the server of SOURCE (default: AWS, Google, Azure or Hugging Face; required for Pachyderm)")
	f.StringVar(&o.access.Region, "region", "", "region that requests are signed for (default: AWS_REGION; if that is not set, the bucket's region at AWS, and us-east-1 elsewhere)")
	f.StringVar(&o.style, "address-style", "auto", "position of the bucket's name in URLs: path, virtual (in the host name) or auto")
	f.BoolVar(&o.access.Anonymous, "anonymous", false, "send no credentials")
	f.StringVar(&o.access.CredentialsDir, "credentials-dir", "", "directory with the files awsAccessKeyID, awsSecretAccessKey and awsSessionToken for S3; token for Pachyderm, Hugging Face and HTTP; username and password for HTTP; .dockerconfigjson for OCI; key.json for Google; accountKey or sasToken for Azure")
	f.StringVar(&o.access.CAFile, "ca-file", "", "file with certificates to trust in addition to the system's, as PEM")
	f.IntVar(&o.parallel, "parallel", 0, "maximum number of concurrent requests; 0: depends on the objects")
	f.StringVar(&o.memory, "memory", "128Mi", "maximum number of bytes in flight")
	f.IntVar(&o.attempts, "attempts", 8, "maximum number of attempts for each object")
	f.DurationVar(&o.stall, "stall", 30*time.Second, "abort a request that transfers less than 64 KiB in this time; 0: never")
	f.DurationVar(&o.timeout, "timeout", 0, "timeout of the whole run; 0: none")
	f.StringVar(&o.progress, "progress", "auto", "progress output: bar, json, none, or auto (a bar on a terminal, otherwise JSON lines)")
	f.StringVar(&o.listen, "listen", "", "address for GET /progress and GET /ready, such as :8090")
	f.StringVar(&o.result, "result", "", "file to write the result to, as one JSON object")
	f.StringVar(&o.versions, "versions", "", "directory, DEST or a parent of it, that holds versions of the dataset: with --sync, a new version is created beside the current one and then replaces it as a whole; put, mirror and serve read the current one")
	f.StringVar(&o.logLevel, "log-level", "info", "lowest level that is logged: error, warning, info, debug or trace")
}

// session is one call of the program.
type session struct {
	*options
	progress  *fetch.Progress
	log       *logrus.Logger
	memory    int64
	bandwidth int64
}

// cappedReadBuffer is how many bytes may wait in the kernel for each connection if --bandwidth slows
// reading.
const cappedReadBuffer = 256 << 10

var errTimeout = errors.New("--timeout has expired")

// runSession prepares a session, runs a verb in it, and reports its end in the status, the result and the
// error.
func (o *options) runSession(cmd *cobra.Command, verb func(context.Context, *session) error) error {
	s, err := o.session()
	if err != nil {
		return o.finish(fetch.NewProgress(fetch.ReadyAfter{}), usageError{err})
	}
	ctx := cmd.Context()
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.timeout, errTimeout)
		defer cancel()
	}
	if o.listen != "" {
		address, stop, err := fetch.ServeProgress(ctx, o.listen, s.progress)
		if err != nil {
			return o.finish(s.progress, store.Failure(err, false))
		}
		defer stop()
		s.log.WithField("address", address.String()).Info("Serving progress")
	}
	shown := printProgress(ctx, cmd.OutOrStdout(), os.Stderr, o.progress, s.progress)
	err = o.finish(s.progress, store.FailIfHung(ctx, o.stall, func(ctx context.Context) error { return verb(ctx, s) }))
	shown()
	return err
}

// finish writes the result, also of a run that never began: a user who starts a Job sees nothing else.
func (o *options) finish(progress *fetch.Progress, err error) error {
	status := progress.Status(time.Now())
	if errors.Is(err, errTimeout) {
		progress.Fail(err.Error(), false) // a retry needs a longer timeout
		status = progress.Status(time.Now())
	}
	if err != nil && !errors.Is(err, errRefused) && status.State != protocol.StateFailed {
		var failed *store.Error
		progress.Fail(err.Error(), errors.As(err, &failed) && failed.Retryable)
		status = progress.Status(time.Now())
	}
	return errors.Join(err, writeResult(o.result, status))
}

// session checks the flags that the called packages do not check.
func (o *options) session() (*session, error) {
	s := &session{options: o}
	var err error
	if s.log, err = logging.New(os.Stderr, logging.FormatText, o.logLevel); err != nil {
		return nil, err
	}
	if s.memory, err = size("--memory", o.memory); err != nil {
		return nil, err
	}
	if s.bandwidth, err = size("--bandwidth", o.bandwidth); err != nil {
		return nil, err
	}
	after, err := readyAfter(o.readyAfter)
	if err != nil {
		return nil, err
	}
	switch {
	case o.attempts < 1:
		return nil, fmt.Errorf("--attempts is %d; give 1 or more", o.attempts)
	case o.parallel < 0 || o.parallel > 1024:
		return nil, fmt.Errorf("--parallel is %d; give 1 to 1024, or 0 to have it chosen", o.parallel)
	case o.stall < 0 || o.timeout < 0:
		return nil, fmt.Errorf("--stall and --timeout cannot be negative")
	case (o.order == fetch.OrderList) != (o.orderFile != ""):
		return nil, fmt.Errorf("--order=list and --order-file go together")
	}
	switch o.progress {
	case "auto", "bar", "json", "none":
	default:
		return nil, fmt.Errorf("--progress %q is not known; it is auto, bar, json or none", o.progress)
	}
	o.access.Style, o.access.Attempts, o.access.Stall = s3store.AddressStyle(o.style), o.attempts, o.stall
	if s.bandwidth > 0 {
		o.access.ReadBuffer = cappedReadBuffer
	}
	s.progress = fetch.NewProgress(after)
	return s, nil
}

// size parses bytes such as 128Mi; empty is 0.
func size(flag, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return 0, fmt.Errorf("%s is %q; give bytes such as 128Mi", flag, text)
	}
	return q.Value(), nil
}

// readyAfter parses --ready-after: digits alone count files.
func readyAfter(text string) (fetch.ReadyAfter, error) {
	n, err := size("--ready-after", text)
	if err != nil || text == "" {
		return fetch.ReadyAfter{}, err
	}
	if last := text[len(text)-1]; last >= '0' && last <= '9' {
		return fetch.ReadyAfter{Files: n}, nil
	}
	return fetch.ReadyAfter{Bytes: n}, nil
}

// writeResult writes the last status, truncated to the 4096 bytes of a termination message that
// Kubernetes keeps.
func writeResult(name string, status protocol.Status) error {
	if name == "" {
		return nil
	}
	data, err := status.Result()
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		return store.Failure(fmt.Errorf("write --result: %w", err), false)
	}
	return nil
}
