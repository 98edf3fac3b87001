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

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The supported verbs. For the others, kubelet acts itself once it gets "Not supported".
const (
	verbInit    = "init"
	verbMount   = "mount"
	verbUnmount = "unmount"
	verbExpand  = "expandfs"
	// VerbSettle is not a verb of kubelet: the driver executes itself with it after a first mount
	// (node.Config.Settle). Its arguments are a volume group and the name of a volume.
	VerbSettle = "settle"
)

// An Engine carries out the calls. It checks the directories itself, and every method can be repeated after it
// was killed at any moment.
type Engine interface {
	Mount(ctx context.Context, spec volume.Spec, r node.MountRequest) error
	// Unmount succeeds if nothing is mounted or target does not exist.
	Unmount(ctx context.Context, target string) error
	// Expand grows the volume to size. The spec has no namespace, because kubelet does not pass it to expandfs.
	Expand(ctx context.Context, spec volume.Spec, size volume.Bytes) error
	// Settle records durably that the first mount of a volume is complete.
	Settle(ctx context.Context, g volume.Group, n volume.Name) error
}

// Deadlines of the verbs, because kubelet sets none. They are far above the usual duration of a call and allow
// twenty first mounts to queue for LVM. An unmount may have to write back gigabytes.
const (
	mountDeadline   = 3 * time.Minute
	expandDeadline  = 3 * time.Minute
	settleDeadline  = 3 * time.Minute
	unmountDeadline = 5 * time.Minute
	// grace is how long the engine may clean up after a deadline. It is longer than internal/command waits for
	// a program to terminate.
	grace = 10 * time.Second
)

// A handler handles one call.
type handler struct {
	engine Engine
	log    logrus.FieldLogger
	grace  time.Duration
}

// A call is a verb with its parsed arguments.
type call struct {
	verb     string
	deadline time.Duration
	fields   logrus.Fields // for the log; never the options themselves
	do       func(context.Context, Engine) error
}

// parseCall parses the arguments of a call. ok is false if the verb is not supported.
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

// countArgs returns an error if the number of arguments is wrong.
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
		return e.Mount(ctx, r.spec, node.MountRequest{Target: target, ReadOnly: r.readOnly})
	}}, nil
}

func parseUnmount(args []string) (call, error) {
	if err := countArgs(verbUnmount, args, "mount directory"); err != nil {
		return call{}, err
	}
	target := args[0]
	if !filepath.IsAbs(target) {
		// Nothing is ever mounted on it, but success would mean that it was checked.
		return call{}, &volume.FieldError{Field: "mount directory", Value: target, Reason: "is not an absolute path"}
	}
	return call{deadline: unmountDeadline, fields: logrus.Fields{"target": target}, do: func(ctx context.Context, e Engine) error {
		return e.Unmount(ctx, target)
	}}, nil
}

// parseExpand parses the call that kubelet makes once the PersistentVolume has the new size. It ignores the
// device, which is empty because nothing was attached, and the directory, because the volume is found by its
// name.
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

// checkOldSize checks the previous size, which kubelet takes from the claim's status and passes as 0 if the
// status has none.
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

// answer carries out a call and logs its result.
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

// errPanic is the error that kubelet gets after a panic; the log has the details.
var errPanic = errors.New("internal error in the driver; its log holds the details, please report them")

// run calls the engine. It returns after a panic, and also after the deadline if the engine does not observe
// the deadline. A thread that sleeps uninterruptibly in the kernel still keeps the process, and with it
// kubelet, waiting.
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
