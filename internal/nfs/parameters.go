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

// knownParameters are listed in this order in error messages.
var knownParameters = []string{parameterServer, parameterPath, parameterOnDelete, parameterMode, parameterGroup, parameterEnforce}

// OnDelete determines what happens to a directory when its PersistentVolume, with the reclaim policy
// Delete, is released.
type OnDelete string

const (
	// Archive renames the directory, and keeps its content until a person removes it. It is the
	// default: a class that does not set onDelete must not lose data.
	Archive OnDelete = "archive"
	// Remove removes the directory with all its content.
	Remove OnDelete = "delete"
	// Retain keeps the directory unchanged, under its name.
	Retain OnDelete = "retain"
)

// parseOnDelete rejects the empty string: once a volume exists, neither removing nor keeping its
// directory is a default.
func parseOnDelete(field, s string) (OnDelete, error) {
	switch o := OnDelete(s); o {
	case Archive, Remove, Retain:
		return o, nil
	}
	return "", &volume.FieldError{Field: field, Value: s, Reason: fmt.Sprintf("is not known; it is one of %s, %s, %s", Archive, Remove, Retain)}
}

// Access is the mode and the group of a directory on the server.
type Access struct {
	Mode  fs.FileMode // permissions, and perhaps fs.ModeSetgid
	Group int         // -1: the server's choice
}

// everybody is the default: kubelet does not apply a pod's fsGroup to NFS, so otherwise only root could
// write. Only pods with the claim mount the directory.
var everybody = Access{Mode: 0o777, Group: -1}

// Parameters are the parsed parameters of a StorageClass.
type Parameters struct {
	Export   Export
	OnDelete OnDelete
	Access   Access
	// EnforceSize: a volume is not published before the server enforces its directory's size.
	EnforceSize bool
}

// parseParameters parses the parameters of a StorageClass. An unknown parameter is an error, because
// somebody relies on it. The error is a *controlplane.Refusal that names every problem.
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

// choose returns the export that a class names.
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

// parseMode parses permissions as chmod(1) does, in octal digits.
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
