package provision

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Parameters of encrypted classes, with the names of CSI's provisioner. They are templates, see
// secretTemplate.
const (
	parameterPublishName      = "csi.storage.k8s.io/node-publish-secret-name"
	parameterPublishNamespace = "csi.storage.k8s.io/node-publish-secret-namespace"
	parameterExpandName       = "csi.storage.k8s.io/node-expand-secret-name"
	parameterExpandNamespace  = "csi.storage.k8s.io/node-expand-secret-namespace"
)

// A secretTemplate names the Secret of each volume of a class. It may use only the claim's name and
// namespace, which are fixed when the claim is created: with annotations, which CSI's provisioner
// supports, too, a tenant could choose among all Secrets.
type secretTemplate struct{ namespace, name string }

// Placeholders of the namespace and the name.
var (
	inNamespace = []string{"pv.name", "pvc.namespace"}
	inName      = []string{"pv.name", "pvc.namespace", "pvc.name"}
)

// parseTemplate checks the placeholders of a template. The error is a *volume.FieldError.
func parseTemplate(known []string) func(field, s string) (string, error) {
	return func(field, s string) (string, error) {
		var foreign []string
		expanded := expand(s, func(key string) string {
			if !slices.Contains(known, key) {
				foreign = append(foreign, key)
			}
			return "x"
		})
		switch {
		case s == "":
			return "", &volume.FieldError{Field: field, Reason: "is empty; name the Secret with the keys"}
		case len(foreign) > 0 || strings.Contains(expanded, "$"):
			return "", &volume.FieldError{Field: field, Value: s, Reason: "holds a placeholder that is not known; there are ${" + strings.Join(known, "}, ${") + "}"}
		}
		return s, nil
	}
}

// expand replaces ${NAME}, and leaves any other $ unchanged.
func expand(template string, value func(string) string) string {
	parts := strings.Split(template, "${")
	for i := range parts {
		head, tail, placeholder := strings.Cut(parts[i], "}")
		switch {
		case i == 0:
		case placeholder:
			parts[i] = value(head) + tail
		default:
			parts[i] = "${" + parts[i]
		}
	}
	return strings.Join(parts, "")
}

// of returns the Secret of a request's volume.
func (s secretTemplate) of(r Request) pv.SecretRef {
	value := func(key string) string {
		switch key {
		case "pv.name":
			return r.PVName
		case "pvc.namespace":
			return r.Claim.Namespace
		}
		return r.Claim.Name
	}
	return pv.SecretRef{Namespace: expand(s.namespace, value), Name: expand(s.name, value)}
}

// checkEncrypted rejects encrypted classes without Secrets, and Secrets without encryption. If a class
// names no Secret for growth, checkEncrypted sets the one for mounts.
func checkEncrypted(p *Parameters, wrong *controlplane.Problems) {
	none := secretTemplate{}
	if !p.Encrypted {
		if p.publishSecret != none || p.expandSecret != none {
			wrong.Add(fmt.Sprintf("%s and its like: belong to classes with %s %q; add that, or leave them out", parameterPublishName, volume.OptionEncrypted, "true"))
		}
		return
	}
	if p.Kind == volume.Dataset {
		wrong.Add(fmt.Sprintf("%s: is not supported with %s %q, whose readers have no key; leave it out", volume.OptionEncrypted, volume.OptionKind, volume.Dataset))
	}
	if p.Trim.Regular() {
		wrong.Add(fmt.Sprintf("%s %q: does nothing with %s %q, which passes no discards on: they would show on the disk which blocks are free; use %q, or leave it out", parameterTrim, p.Trim, volume.OptionEncrypted, "true", volume.TrimNever))
	}
	if p.publishSecret.name == "" || p.publishSecret.namespace == "" {
		wrong.Add(fmt.Sprintf("%s: needs %s and %s, which name the Secret with the key", volume.OptionEncrypted, parameterPublishName, parameterPublishNamespace))
	}
	if p.expandSecret == none {
		p.expandSecret = p.publishSecret
	}
	if p.expandSecret.name == "" || p.expandSecret.namespace == "" {
		wrong.Add(fmt.Sprintf("%s and %s: belong together; give both, or none for those of mounts", parameterExpandName, parameterExpandNamespace))
	}
}

// checkSecrets rejects encrypted volumes that kubelet cannot pass a key to, and invalid Secrets.
func (r Request) checkSecrets(p Parameters, wrong *controlplane.Problems) {
	if !p.Encrypted {
		return
	}
	if r.door() != pv.CSI {
		wrong.Add(fmt.Sprintf("StorageClass %q: %s needs %s %q: kubelet would pass the key to a FlexVolume driver in its arguments, which whoever is on the node can read", r.Class.Name, volume.OptionEncrypted, pv.ParameterDoor, pv.CSI))
	}
	secrets := r.secrets(p)
	wrong.Check(checkSecret("the Secret of StorageClass "+r.Class.Name, secrets.Publish))
	if secrets.Expand != secrets.Publish {
		wrong.Check(checkSecret("the Secret for growth of StorageClass "+r.Class.Name, secrets.Expand))
	}
}

// systemNamespaces hold the Secrets of the cluster. The policy provisioner.flexlvm.io keeps the
// provisioner's service account from referring kubelets to them.
var systemNamespaces = []string{"kube-system", "flexlvm-system"}

func checkSecret(field string, s pv.SecretRef) error {
	if slices.Contains(systemNamespaces, s.Namespace) {
		return &volume.FieldError{Field: field, Value: s.Name, Reason: fmt.Sprintf("namespace %q is not for keys of volumes; put them into one of their own", s.Namespace)}
	}
	return s.Check(field)
}

// secrets returns the Secrets of the request's volume; none if it is not encrypted.
func (r Request) secrets(p Parameters) pv.Secrets {
	if !p.Encrypted {
		return pv.Secrets{}
	}
	return pv.Secrets{Publish: p.publishSecret.of(r), Expand: p.expandSecret.of(r)}
}
