package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// The part of SPDX 2.3 that flexlvm uses, see https://spdx.github.io/spdx-spec/v2.3/.
type (
	document struct {
		SPDXVersion       string         `json:"spdxVersion"`
		DataLicense       string         `json:"dataLicense"`
		SPDXID            string         `json:"SPDXID"`
		Name              string         `json:"name"`
		DocumentNamespace string         `json:"documentNamespace"`
		CreationInfo      creation       `json:"creationInfo"`
		Packages          []pkg          `json:"packages"`
		Relationships     []relationship `json:"relationships"`
	}
	creation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	pkg struct {
		SPDXID           string     `json:"SPDXID"`
		Name             string     `json:"name"`
		VersionInfo      string     `json:"versionInfo"`
		DownloadLocation string     `json:"downloadLocation"`
		FilesAnalyzed    bool       `json:"filesAnalyzed"`
		LicenseDeclared  string     `json:"licenseDeclared"`
		LicenseConcluded string     `json:"licenseConcluded"`
		CopyrightText    string     `json:"copyrightText"`
		Checksums        []checksum `json:"checksums,omitempty"`
		ExternalRefs     []external `json:"externalRefs,omitempty"`
	}
	checksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	external struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	relationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

const unasserted = "NOASSERTION"

// writeSBOM writes the components of the programs, as the linker recorded them: dirs holds the programs by
// architecture, plugins the plugin for Linux. Its builds for other systems have the same components.
func writeSBOM(to, version string, dirs, plugins map[string]string) error {
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: "flexlvm-" + version,
		// The time is required. The real time would differ in every build.
		CreationInfo: creation{Created: "1970-01-01T00:00:00Z", Creators: []string{"Tool: flexlvm-tools-release"}},
	}
	modules := map[string]pkg{}
	for _, arch := range sortedKeys(dirs) {
		for _, p := range programs {
			if err := d.addProgram(p, version, arch, filepath.Join(dirs[arch], p), modules); err != nil {
				return err
			}
		}
		if err := d.addProgram(plugin, version, arch, filepath.Join(plugins[arch], plugin), modules); err != nil {
			return err
		}
	}
	for _, id := range sortedKeys(modules) {
		d.Packages = append(d.Packages, modules[id])
	}
	// The namespace must be unique for each document.
	content, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("write bill of materials: %w", err)
	}
	d.DocumentNamespace = fmt.Sprintf("https://%s/spdx/%s-%x", module, version, sha256.Sum256(content))
	if content, err = json.MarshalIndent(d, "", "  "); err != nil {
		return fmt.Errorf("write bill of materials: %w", err)
	}
	if err := os.WriteFile(to, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("write bill of materials: %w", err)
	}
	return nil
}

// addProgram adds a program, and adds the modules that it links to modules.
func (d *document) addProgram(name, version, arch, file string, modules map[string]pkg) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return fmt.Errorf("write bill of materials: %w", err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("write bill of materials: %w", err)
	}
	sum := sha256.Sum256(content)
	p := newPackage("Program-"+name+"-"+arch, name, version)
	p.LicenseDeclared, p.LicenseConcluded = "Apache-2.0", "Apache-2.0"
	p.Checksums = []checksum{{"SHA256", hex.EncodeToString(sum[:])}}
	d.Packages = append(d.Packages, p)
	d.Relationships = append(d.Relationships, relationship{d.SPDXID, "DESCRIBES", p.SPDXID})
	linked := []*debug.Module{{Path: "stdlib", Version: info.GoVersion}}
	for _, m := range append(linked, info.Deps...) {
		if m.Replace != nil {
			m = m.Replace
		}
		q := newPackage("Module-"+m.Path+"-"+m.Version, m.Path, m.Version)
		q.ExternalRefs = []external{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}}
		modules[q.SPDXID] = q
		d.Relationships = append(d.Relationships, relationship{p.SPDXID, "DEPENDS_ON", q.SPDXID})
	}
	return nil
}

// newPackage returns a package without further assertions.
func newPackage(id, name, version string) pkg {
	// An identifier may contain only letters, digits, dots and dashes.
	id = strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, id)
	return pkg{SPDXID: "SPDXRef-" + id, Name: name, VersionInfo: version, DownloadLocation: unasserted,
		LicenseDeclared: unasserted, LicenseConcluded: unasserted, CopyrightText: unasserted}
}
