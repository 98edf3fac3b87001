package nfs

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Parameters of a StorageClass.
const (
	parameterServer   = "server"
	parameterPath     = "path"
	parameterOnDelete = "onDelete"
	parameterMode     = "mode"
	parameterGroup    = "gid"
	parameterEnforce  = "enforceSize"
)

// knownParameters in the order in which people are told of them.
var knownParameters = []string{parameterServer, parameterPath, parameterOnDelete, parameterMode, parameterGroup, parameterEnforce}

// OnDelete says what happens to a directory when its PersistentVolume, with the reclaim
// policy Delete, is released.
type OnDelete string

const (
	// Archive renames it, and keeps what is in it until a person removes it. It is the
	// default: a class that does not set onDelete must not lose anything.
	Archive OnDelete = "archive"
	// Remove removes it with all that is in it.
	Remove OnDelete = "delete"
	// Retain leaves it as it is, under its name.
	Retain OnDelete = "retain"
)

// parseOnDelete does not take the empty string: nothing is removed, and nothing
// kept, by default, once a volume is there.
func parseOnDelete(field, s string) (OnDelete, error) {
	switch o := OnDelete(s); o {
	case Archive, Remove, Retain:
		return o, nil
	}
	return "", &volume.FieldError{Field: field, Value: s, Reason: fmt.Sprintf("is not known; it is one of %s, %s, %s", Archive, Remove, Retain)}
}

// Access is who may use a directory: its mode and its group on the server.
type Access struct {
	Mode  fs.FileMode // permissions, and perhaps fs.ModeSetgid
	Group int         // -1: the one that the server gives it
}

// everybody is the default: kubelet does not apply a pod's fsGroup to NFS, so
// nobody but root could write otherwise. Only pods that have the claim mount the
// directory.
var everybody = Access{Mode: 0o777, Group: -1}

// Parameters is a StorageClass as its volumes see it.
type Parameters struct {
	Export   Export
	OnDelete OnDelete
	Access   Access
	// EnforceSize: no volume is offered before the server holds its directory to its size.
	EnforceSize bool
}

// parseParameters reads the parameters of a StorageClass. One that is not known is an
// error, for it is a word that somebody relies on. The error is a *controlplane.Refusal
// that names everything that is wrong.
func (all Exports) parseParameters(given map[string]string) (Parameters, error) {
	out := Parameters{OnDelete: Archive, Access: everybody}
	var wrong []string
	check := func(err error) {
		if err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(knownParameters, name) {
			wrong = append(wrong, fmt.Sprintf("unknown parameter %q; the known ones are %s", name, strings.Join(knownParameters, ", ")))
		}
	}
	var err error
	out.Export, err = all.choose(given)
	check(err)
	if s, named := given[parameterOnDelete]; named {
		out.OnDelete, err = parseOnDelete(parameterOnDelete, s)
		check(err)
	}
	if s, named := given[parameterMode]; named {
		out.Access.Mode, err = parseMode(parameterMode, s)
		check(err)
	}
	if s, named := given[parameterGroup]; named {
		out.Access.Group, err = parseGroup(parameterGroup, s)
		check(err)
	}
	if s, named := given[parameterEnforce]; named {
		out.EnforceSize, err = parseSwitch(parameterEnforce, s)
		check(err)
	}
	if len(wrong) > 0 {
		return Parameters{}, &controlplane.Refusal{Problems: wrong}
	}
	return out, nil
}

// choose finds the export that a class names.
func (all Exports) choose(given map[string]string) (Export, error) {
	for _, name := range []string{parameterServer, parameterPath} {
		if given[name] == "" {
			return Export{}, &volume.FieldError{Field: name, Reason: fmt.Sprintf("is required; this provisioner has the exports %s", all)}
		}
	}
	server, err := parseServer(parameterServer, given[parameterServer])
	if err != nil {
		return Export{}, err
	}
	if err := checkPath(parameterPath, given[parameterPath]); err != nil {
		return Export{}, err
	}
	if e, found := all.find(server, given[parameterPath]); found {
		return e, nil
	}
	return Export{}, &volume.FieldError{
		Field: "server and path", Value: Export{Server: server, Path: given[parameterPath]}.String(),
		Reason: fmt.Sprintf("is no export of this provisioner, which has %s; name one of them as it is written there, or give the provisioner another --export", all),
	}
}

// parseMode reads permissions as chmod(1) takes them, in octal digits.
func parseMode(field, s string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n&^0o2777 != 0 || n&0o700 != 0o700 {
		return 0, &volume.FieldError{Field: field, Value: s, Reason: "is not a mode: octal digits that let the owner do everything, from 0700 to 0777, with 2000 for the set-group-ID bit; quote it, as in \"2770\""}
	}
	mode := fs.FileMode(n & 0o777)
	if n&0o2000 != 0 {
		mode |= fs.ModeSetgid
	}
	return mode, nil
}

func parseSwitch(field, s string) (bool, error) {
	if s != "true" && s != "false" {
		return false, &volume.FieldError{Field: field, Value: s, Reason: "is neither true nor false; quote it, as in \"true\""}
	}
	return s == "true", nil
}

func parseGroup(field, s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > math.MaxInt32 {
		return 0, &volume.FieldError{Field: field, Value: s, Reason: "is not a group ID, a number from 0 to 2147483647"}
	}
	return int(n), nil
}
