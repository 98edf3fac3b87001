package flexvolume

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// The supported verbs. kubelet does the others itself once it gets "Not supported".
const (
	verbInit    = "init"
	verbMount   = "mount"
	verbUnmount = "unmount"
	verbExpand  = "expandfs"
	// VerbSettle is not one of kubelet's verbs: after a first mount the driver calls
	// itself with it (node.Config.Settle). It takes a group and the name of a volume.
	VerbSettle = "settle"
)

// An Engine carries out the calls. It checks the directories itself, and every method can
// be repeated after it was killed at any instant.
type Engine interface {
	Mount(ctx context.Context, spec volume.Spec, target string, readOnly bool) error
	// Unmount succeeds if nothing is mounted or target does not exist.
	Unmount(ctx context.Context, target string) error
	// Expand grows the volume to size. The spec has no namespace: kubelet does not pass
	// it here.
	Expand(ctx context.Context, spec volume.Spec, size volume.Bytes) error
	// Settle records durably that a first mount is done.
	Settle(ctx context.Context, g volume.Group, n volume.Name) error
}

// Deadlines of the verbs. kubelet sets none. They are far above what a call
// takes, and let twenty first mounts queue for LVM; an unmount may have to write
// gigabytes back.
const (
	mountDeadline   = 3 * time.Minute
	expandDeadline  = 3 * time.Minute
	settleDeadline  = 3 * time.Minute
	unmountDeadline = 5 * time.Minute
	// grace is what the engine gets after a deadline to put things in order. It is
	// longer than internal/command waits for a program that was asked to end.
	grace = 10 * time.Second
)

// A handler answers one call.
type handler struct {
	engine Engine
	log    logrus.FieldLogger
	grace  time.Duration
}

// A call is what a verb's arguments ask of the engine.
type call struct {
	verb     string
	deadline time.Duration
	fields   logrus.Fields // for the log; never the options themselves
	do       func(context.Context, Engine) error
}

// parseCall understands the arguments of a call. ok is false for verbs that are
// not supported.
func parseCall(args []string) (c call, ok bool, err error) {
	verb, args := args[0], args[1:]
	switch verb {
	case verbMount:
		c, err = parseMount(args)
	case verbUnmount:
		c, err = parseUnmount(args)
	case verbExpand:
		c, err = parseExpand(args)
	case VerbSettle:
		c, err = parseSettle(args)
	case verbInit:
		err = countArgs(verb, args)
	default:
		return call{verb: verb}, false, nil
	}
	c.verb = verb
	return c, true, err
}

// countArgs refuses too few and too many.
func countArgs(verb string, args []string, names ...string) error {
	if len(args) == len(names) {
		return nil
	}
	what := fmt.Sprintf("takes no arguments, got %d", len(args))
	if len(names) > 0 {
		what = fmt.Sprintf("takes %d arguments (%s), got %d", len(names), strings.Join(names, ", "), len(args))
	}
	if len(names) == 1 {
		what = strings.Replace(what, "arguments", "argument", 1)
	}
	return &volume.FieldError{Field: "arguments of " + verb, Reason: what}
}

func parseMount(args []string) (call, error) {
	if err := countArgs(verbMount, args, "mount directory", "options"); err != nil {
		return call{}, err
	}
	target := args[0]
	r, err := parseRequest(args[1], keyName, keyReadWrite, keyNamespace)
	if err != nil {
		return call{}, err
	}
	fields := r.fields(target)
	fields["readOnly"] = r.readOnly
	return call{deadline: mountDeadline, fields: fields, do: func(ctx context.Context, e Engine) error {
		return e.Mount(ctx, r.spec, target, r.readOnly)
	}}, nil
}

func parseUnmount(args []string) (call, error) {
	if err := countArgs(verbUnmount, args, "mount directory"); err != nil {
		return call{}, err
	}
	target := args[0]
	if !filepath.IsAbs(target) {
		// Nothing is ever mounted there, but success would say that it was looked at.
		return call{}, &volume.FieldError{Field: "mount directory", Value: target, Reason: "is not an absolute path"}
	}
	return call{deadline: unmountDeadline, fields: logrus.Fields{"target": target}, do: func(ctx context.Context, e Engine) error {
		return e.Unmount(ctx, target)
	}}, nil
}

// parseExpand reads what kubelet calls once the PersistentVolume carries the new
// size. The device is empty, because nothing was attached, and the volume is
// found by its name, so neither that nor the directory is looked at.
func parseExpand(args []string) (call, error) {
	if err := countArgs(verbExpand, args, "options", "device", "mount directory", "new size", "old size"); err != nil {
		return call{}, err
	}
	r, err := parseRequest(args[0], keyName)
	if err != nil {
		return call{}, err
	}
	to, err := volume.ParseBytes("new size", args[3])
	if err != nil {
		return call{}, err
	}
	if err := checkOldSize(args[4], to); err != nil {
		return call{}, err
	}
	fields := r.fields(args[2])
	fields["to"] = int64(to)
	return call{deadline: expandDeadline, fields: fields, do: func(ctx context.Context, e Engine) error {
		return e.Expand(ctx, r.spec, to)
	}}, nil
}

func parseSettle(args []string) (call, error) {
	if err := countArgs(VerbSettle, args, "volume group", "volume"); err != nil {
		return call{}, err
	}
	g, err := volume.ParseGroup("volume group", args[0])
	if err != nil {
		return call{}, err
	}
	n, err := volume.ParseName("volume", args[1])
	if err != nil {
		return call{}, err
	}
	fields := logrus.Fields{"volume": string(g) + "/" + string(n)}
	return call{deadline: settleDeadline, fields: fields, do: func(ctx context.Context, e Engine) error {
		return e.Settle(ctx, g, n)
	}}, nil
}

// checkOldSize looks at what the claim's status says the size has been; kubelet
// gives 0 where the status says nothing.
func checkOldSize(s string, to volume.Bytes) error {
	if s == "0" {
		return nil
	}
	from, err := volume.ParseBytes("old size", s)
	if err != nil {
		return err
	}
	if to < from {
		return &volume.FieldError{Field: "new size", Value: strconv.FormatInt(int64(to), 10), Reason: fmt.Sprintf("is less than the old size %d; a volume never shrinks", int64(from))}
	}
	return nil
}

func (r request) fields(target string) logrus.Fields {
	f := logrus.Fields{"target": target, "volume": string(r.spec.Group) + "/" + string(r.spec.Name)}
	if r.pod != "" {
		f["pod"] = r.spec.Namespace + "/" + r.pod
	}
	return f
}

// answer carries a call out and logs how it ended.
func (h handler) answer(ctx context.Context, c call) Reply {
	start := time.Now()
	err := h.run(ctx, c)
	line := h.log.WithFields(c.fields).WithField("verb", c.verb).WithField("took", time.Since(start).Round(10*time.Microsecond))
	if err != nil {
		line.WithError(err).Error("call failed")
		return failure(err)
	}
	line.Info("call succeeded")
	return success
}

// errPanic is what kubelet is told of a panic; the log has the rest.
var errPanic = errors.New("internal error in the driver; its log holds the details, please report them")

// run calls the engine and comes back after a panic, and after the deadline too,
// where the engine does not heed it. A thread that sleeps in the kernel and
// cannot be woken keeps the process, and so kubelet, waiting all the same.
func (h handler) run(ctx context.Context, c call) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.deadline, fmt.Errorf("%s did not end within %s", c.verb, c.deadline))
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				h.log.WithField("verb", c.verb).Errorf("panic: %v\n%s", p, debug.Stack())
				done <- errPanic
			}
		}()
		done <- c.do(ctx, h.engine)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(h.grace):
		return fmt.Errorf("%w, nor within %s more; a device may hang: see the kernel's log", context.Cause(ctx), h.grace)
	}
}
