"""Loaders: made-up files of each format, what is refused, where files come from, the real data."""

import gzip
import hashlib
import io
import os
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trimtab.problems.data import files
from trimtab.problems.data.emnist import EMNIST, emnist
from trimtab.problems.data.files import DataError, Source, fetch, find, search_folders
from trimtab.problems.data.images import CIFAR10, CIFAR100, cifar10, cifar100
from trimtab.problems.data.shakespeare import SHAKESPEARE, joined, shakespeare
from trimtab.problems.data.tables import (
    A9A_TRAIN,
    CONCRETE,
    HOSPITALS,
    a9a,
    concrete,
    heart_disease,
)

SOURCES = [EMNIST, CIFAR10, CIFAR100, CONCRETE, A9A_TRAIN, SHAKESPEARE, *HOSPITALS.values()]


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Return a folder, with an empty cache and no TRIMTAB_DATA."""
    monkeypatch.delenv("TRIMTAB_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def online(monkeypatch):
    monkeypatch.delenv("TRIMTAB_OFFLINE")


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# -- EMNIST


def idx(array):
    sizes = struct.pack(f">{array.dim()}i", *array.shape)
    return bytes((0, 0, 8, array.dim())) + sizes + bytes(array.flatten().int().tolist())


def letter_l():
    """Return an L of 28 x 28, upright: a long stroke at the left, a short one at the bottom."""
    image = torch.zeros(28, 28, dtype=torch.uint8)
    image[2:26, 4] = 255
    image[25, 4:12] = 51
    return image


def write_emnist(folder, stem, part, labels, images=None):
    images = letter_l().T.repeat(len(labels), 1, 1) if images is None else images
    for kind, array in (("images-idx3", images), ("labels-idx1", torch.tensor(labels))):
        name = f"{stem}-{part}-{kind}-ubyte.gz"
        write(folder / "emnist" / name, gzip.compress(idx(array)))
    return folder / "emnist"


def test_emnist_stands_upright(alone):
    write_emnist(alone, "emnist-balanced", "train", [21, 46, 0])
    write_emnist(alone, "emnist-balanced", "test", [21])
    (X, y), (X_test, y_test), name = emnist(data=alone)
    assert (X.shape, X.dtype, y.tolist(), y.dtype) == (
        (3, 784),
        torch.float32,
        [21, 46, 0],
        torch.int64,
    )
    assert torch.equal(X[1].reshape(28, 28), letter_l() / 255)
    assert (X_test.shape, y_test.tolist()) == ((1, 784), [21])
    assert name == "EMNIST Balanced, 3 / 1"


def test_standardised_pixels_have_the_training_parts_mean_0_and_deviation_1(alone):
    write_emnist(alone, "emnist-balanced", "train", [1, 2])
    blank = torch.zeros(1, 28, 28, dtype=torch.uint8)
    write_emnist(alone, "emnist-balanced", "test", [3], blank)
    unit, found = emnist(data=alone), emnist(data=alone, pixels="standardised")
    assert abs(float(found.train[0].mean())) < 1e-6
    assert float(found.train[0].std()) == pytest.approx(1, abs=1e-5)
    X = unit.train[0]
    torch.testing.assert_close(found.test[0], (unit.test[0] - X.mean()) / X.std())


def test_official_emnist_comes_before_emnist47(alone):
    for part in ("train", "test"):
        write_emnist(alone, "emnist47", part, [1, 2])
    assert emnist(data=alone).name == "EMNIST, 47 classes, 2 / 2"
    write_emnist(alone, "emnist-balanced", "train", [3])
    assert emnist(data=alone).name == "EMNIST, 47 classes, 2 / 2", "half of it is not enough"
    write_emnist(alone, "emnist-balanced", "test", [3])
    assert emnist(data=alone).name == "EMNIST Balanced, 1 / 1"


def test_byclass_is_its_test_file_in_two_where_there_is_no_more(alone):
    write_emnist(alone, "emnist-byclass", "test", [61, *range(6)])
    found = emnist("byclass", data=alone)
    assert found.name == "EMNIST, 62 classes, 6 / 1"
    assert found.train[1].tolist() == [61, 0, 1, 2, 3, 4]
    write_emnist(alone, "emnist-byclass", "train", [7, 8])
    assert emnist("byclass", data=alone).name == "EMNIST ByClass, 2 / 7"


LABELS = "emnist47-train-labels-idx1-ubyte.gz"
IMAGES = "emnist47-train-images-idx3-ubyte.gz"
HARMED = {
    "cut short": (IMAGES, lambda raw: raw[:-9], "end-of-stream"),
    "no gzip": (IMAGES, lambda raw: b"<html>", "gzipped"),
    "a bit flipped": (LABELS, lambda raw: raw[:-8] + bytes([raw[-8] ^ 1]) + raw[-7:], "CRC"),
    "a byte missing": (
        LABELS,
        lambda raw: gzip.compress(gzip.decompress(raw)[:-1]),
        "2 bytes of 3",
    ),
    "other dimensions": (LABELS, lambda raw: gzip.compress(idx(torch.zeros(3, 1))), "IDX"),
    "one label too few": (LABELS, lambda raw: gzip.compress(idx(torch.ones(2))), "2 labels for 3"),
    "no such class": (
        LABELS,
        lambda raw: gzip.compress(idx(torch.full((3,), 47))),
        "label 47 of 47",
    ),
}


@pytest.mark.parametrize("harm", HARMED)
def test_a_damaged_emnist_is_refused(alone, refused, harm):
    for part in ("train", "test"):
        folder = write_emnist(alone, "emnist47", part, [1, 2, 3])
    name, change, word = HARMED[harm]
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    with refused(name, "damaged", word, EMNIST.url):
        emnist(data=alone)


def test_a_wrong_option_is_refused(alone, refused):
    with refused("split='letters'", "'balanced' or 'byclass'"):
        emnist("letters", data=alone)
    for part in ("train", "test"):
        write_emnist(alone, "emnist47", part, [1, 2])
    with refused("pixels='raw'", "'standardised'"):
        emnist(data=alone, pixels="raw")


# -- the others


def cifar_record(label):
    return bytes([label]) + bytes([255] * 1024 + [0] * 1023 + [51] + [102] * 1024)


def test_cifar100_has_two_labels(alone, refused):
    folder = alone / "cifar100" / "cifar-100-binary"
    folder.mkdir(parents=True)
    pixels = (torch.arange(3 * 3072) % 251).to(torch.uint8).reshape(3, 3072)
    labels = torch.tensor([[3, 99], [19, 0], [0, 41]], dtype=torch.uint8)
    (folder / "train.bin").write_bytes(torch.cat([labels, pixels], 1).numpy().tobytes())
    (folder / "test.bin").write_bytes(torch.cat([labels, pixels], 1)[:1].numpy().tobytes())
    (X, y), (X_test, y_test), name = cifar100(alone)
    assert y.tolist() == [99, 0, 41]
    assert cifar100(alone, labels="coarse").train[1].tolist() == [3, 19, 0]
    assert torch.equal(X, pixels.float().div(255).reshape(3, 3, 32, 32))
    assert (y_test.tolist(), X_test.shape) == ([99], (1, 3, 32, 32))
    assert name == "CIFAR-100, 3 / 1"
    with refused("labels='both'", "'fine' or 'coarse'"):
        cifar100(alone, labels="both")
    for content, word in (
        (b"\x00" * 3073, "records of 3074"),
        (b"\x00\x64" + b"\x00" * 3072, "100 of"),
    ):
        (folder / "test.bin").write_bytes(content)
        with refused("test.bin", "damaged", word, CIFAR100.url):
            cifar100(alone)


def test_cifar10_has_planes_of_colour_by_rows(alone, refused):
    folder = alone / "cifar10" / "cifar-10-batches-bin"
    write(folder / "data_batch_1.bin", cifar_record(3) + cifar_record(9))
    write(folder / "data_batch_4.bin", cifar_record(0))
    test = write(folder / "test_batch.bin", cifar_record(5))
    (X, y), (_, y_test), name = cifar10(alone)
    assert (X.shape, y.tolist(), name) == ((3, 3, 32, 32), [3, 9, 0], "CIFAR-10, 3 / 1")
    assert X[0, 0].min() == 1
    assert X[0, 1].flatten()[-1] == 51 / 255
    assert X[0, 1].sum() == X[0, 1, 31, 31]
    assert y_test.tolist() == [5]
    assert torch.equal(cifar10(folder.parent).train[0], X), "the folder itself may be named"
    for content, word in (
        (cifar_record(5)[:-1], "3072 bytes"),
        (b"", "0 bytes"),
        (cifar_record(10), "10"),
    ):
        test.write_bytes(content)
        with refused("test_batch.bin", "damaged", word, CIFAR10.url):
            cifar10(alone)


def test_concrete_is_standardised(alone, refused):
    rows = [[i * (j + 1) % 11 + j for j in range(9)] for i in range(1, 21)]
    lines = "\n".join(",".join(map(str, row)) for row in rows)
    path = write(alone / "concrete" / "concrete.csv", f"cement,…,strength\n{lines}\n")
    X, y = concrete(alone)
    assert (X.shape, y.shape, X.dtype) == ((20, 8), (20, 1), torch.float32)
    both = torch.cat([X, y], 1)
    torch.testing.assert_close(both.mean(0), torch.zeros(9), atol=1e-6, rtol=0)
    torch.testing.assert_close(both.square().mean(0), torch.ones(9))
    raw = torch.tensor(rows).float()
    assert torch.equal(y[:, 0].argsort(stable=True), raw[:, 8].argsort(stable=True))
    for content in (
        "a,b\n1,2\n",
        "head\n",
        "head\n1,2,3,4,5,6,7,8,?\n1,2,3,4,5,6,7,9,3\n",
        "h\nx,y\n",
    ):
        path.write_text(content)
        with refused("concrete.csv", "damaged", CONCRETE.url):
            concrete(alone)


PATIENT = "{age},1,{cp},120,{chol},0,0,150,0,1.5,2,{ca},3,{num}"


def write_hospitals(folder, **changes):
    for number, hospital in enumerate(HOSPITALS):
        patients = [
            {"age": 40 + i + number, "cp": 1 + i % 4, "chol": 200 + i, "ca": i % 3, "num": i % 5}
            for i in range(10)
        ]
        if hospital == "va":
            patients = [patient | changes for patient in patients]
        lines = [PATIENT.format(**patient) for patient in patients]
        write(folder / "heart-disease" / f"processed.{hospital}.data", "\n".join(lines) + "\n")


def test_every_hospital_has_patients_to_learn_from_and_to_test_on(alone):
    write_hospitals(alone)
    found = heart_disease(alone)
    assert list(found) == ["cleveland", "hungarian", "switzerland", "va"]
    for (X, y), (X_test, y_test), _ in found.values():
        assert (X.shape, X_test.shape) == ((8, 22), (2, 22))
        assert y.tolist() == [0, 1, 1, 1, 0, 1, 1, 1]
        assert y_test.tolist() == [1, 1]
    X = torch.cat([split.train[0] for split in found.values()])
    torch.testing.assert_close(X.mean(0), torch.zeros(22), atol=1e-6, rtol=0)
    ages = X[:, 0] - X[0, 0]
    torch.testing.assert_close(ages[1] * 4, ages[4] * 4 * 1 / 5)  # the fifth is a test patient
    assert X[:, 2:6].sum(1).unique().numel() <= 4, "one column for each of four kinds of pain"


@pytest.mark.parametrize("missing", [{"chol": "?"}, {"chol": 0}, {"cp": "?"}, {"ca": "?"}])
def test_what_is_missing_is_the_mean_of_all_training_patients(alone, missing):
    write_hospitals(alone, **missing)
    found = heart_disease(alone)
    columns = {"cp": slice(2, 6), "chol": slice(7, 8), "ca": slice(18, 19)}[next(iter(missing))]
    others = torch.cat([found[h].train[0][:, columns] for h in list(found)[:3]])
    assert torch.equal(found["va"].train[0][:, columns], torch.zeros(8, others.shape[1]))
    torch.testing.assert_close(others.square().mean(0), torch.ones(others.shape[1]))


def test_test_patients_do_not_move_the_scale(alone):
    write_hospitals(alone)
    before = heart_disease(alone)
    path = alone / "heart-disease" / "processed.va.data"
    lines = path.read_text().splitlines()
    lines[4] = lines[4].replace("44,", "99,").replace("47,", "99,")
    path.write_text("\n".join(lines))
    after = heart_disease(alone)
    for hospital in HOSPITALS:
        assert torch.equal(before[hospital].train[0], after[hospital].train[0])
    assert not torch.equal(before["va"].test[0], after["va"].test[0])


def test_a_damaged_hospital_is_refused(alone, refused):
    for changes in ({"num": "?"}, {"age": "old"}, {"age": "1,2"}):
        write_hospitals(alone, **changes)
        with refused("processed.va.data", "damaged", HOSPITALS["va"].url):
            heart_disease(alone)


def test_a9a_is_dense(alone, refused):
    write(alone / "a9a" / "a9a", "-1 3:1 123:1 \n+1 1:1 \n")
    test = write(alone / "a9a" / "a9a.t", "+1 2:1\n")
    (X, y), (X_test, y_test), name = a9a(alone)
    assert (X.shape, X.dtype, y.tolist(), y_test.tolist()) == ((2, 123), torch.float32, [0, 1], [1])
    assert X[0].nonzero().flatten().tolist() == [2, 122]
    assert X_test[0].nonzero().flatten().tolist() == [1]
    assert name == "a9a, 2 / 1"
    for content in ("+1 2:\n", "+1 124:1\n", "<html>\n", ""):
        test.write_text(content)
        with refused("a9a.t", "damaged", "libsvmtools/datasets/binary/a9a.t"):
            a9a(alone)


PLAYS = "ANNA:\nto be or\nnot to be\n\nBEN:\nno\n\nANNA:\nthat is the question\n"


def test_shakespeare_is_cut_by_speaker_into_windows(alone):
    write(alone / "shakespeare" / "tinyshakespeare-input.txt", PLAYS)
    plays = shakespeare(alone, length=4)
    assert plays.speakers == ["ANNA"], "BEN says too little"
    assert len(plays.train) == len(plays.test) == 1

    def read(tokens):
        return "".join(plays.characters[t] for t in tokens)

    said = "to be or\nnot to be\nthat is the question\n"
    cut = len(said) * 4 // 5
    for (X, y), text in ((plays.train[0], said[:cut]), (plays.test[0], said[cut:])):
        assert X.dtype == y.dtype == torch.int64
        assert [read(row) for row in X] == [text[i : i + 4] for i in range(len(text) - 4)]
        assert read(y) == text[4:]
    X, y = joined(plays.test, every=2)
    assert read(y) == said[cut:][4::2]
    assert X.shape == (len(y), 4)


def test_windows_are_views(alone):
    write(alone / "shakespeare" / "tinyshakespeare-input.txt", f"ANNA:\n{'to be ' * 2000}\n")
    plays = shakespeare(alone)
    X, _ = plays.train[0]
    assert X.shape[1] == 80
    assert X.untyped_storage().nbytes() == 8 * 12001
    assert len(plays.train[:1]) == 1


@pytest.mark.parametrize("content", ["<html>\n", b"ANNA:\n\xff\xfe\n", ""])
def test_a_text_without_speakers_is_refused(alone, refused, content):
    write(alone / "shakespeare" / "tinyshakespeare-input.txt", content)
    with refused("tinyshakespeare-input.txt", "damaged", SHAKESPEARE.url):
        shakespeare(alone)


# -- where files come from


def served(folder, content=b"1,2\n", name="numbers.csv", **settings):
    """Return a source whose official address is a file of ours."""
    path = write(folder / "served" / name, content)
    return Source("made", path.as_uri(), ("numbers.csv",), most=1 << 16, **settings)


def digest(content, kind="sha256"):
    return f"{kind}:{hashlib.new(kind, content).hexdigest()}"


def cached():
    return files.cache() / "made" / "numbers.csv"


def leftovers():
    return [path.name for path in files.cache().rglob("*") if path.name.startswith(".")]


def test_places_are_searched_in_order(alone, monkeypatch, tmp_path):
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path / "named"))
    source = served(tmp_path)
    last = write(cached(), "cache")
    middle = write(tmp_path / "named" / "made" / "numbers.csv", "named")
    first = write(alone / "numbers.csv", "data")
    assert search_folders(alone) == [alone, tmp_path / "named", tmp_path / "cache" / "trimtab"]
    for path in (first, middle, last):
        assert find(source, "numbers.csv", alone) == path
        path.unlink()
    assert find(source, "numbers.csv", alone) is None


def test_an_archive_may_be_unpacked_by_hand(alone, tmp_path):
    path = write(alone / "made" / "gzip" / "numbers.csv", "unpacked")
    assert find(served(tmp_path), "numbers.csv", alone) == path


def test_the_cache_is_in_the_home_folder_unless_said(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.cache() == tmp_path / "trimtab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.cache() == tmp_path / ".cache" / "trimtab"


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_download_is_verified_and_kept(alone, online, capsys, tmp_path, kind):
    source = served(tmp_path, digest=digest(b"1,2\n", kind))
    assert fetch(source, "numbers.csv", alone) == cached()
    assert cached().read_bytes() == b"1,2\n"
    out, err = capsys.readouterr()
    assert out == ""
    assert f"downloading {source.url}" in err
    (tmp_path / "served" / "numbers.csv").unlink()
    assert fetch(source, "numbers.csv", alone) == cached(), "no second download"
    assert capsys.readouterr().err == ""
    assert leftovers() == []


def test_a_wrong_digest_is_refused_and_nothing_is_kept(alone, online, refused, tmp_path):
    source = served(tmp_path, digest=digest(b"other"))
    with refused("numbers.csv is neither in", "sha256", "published", source.url):
        fetch(source, "numbers.csv", alone)
    assert not cached().exists()
    assert leftovers() == []


def test_without_a_published_digest_the_first_is_noted_and_a_change_refused(
    alone, online, refused, capsys, tmp_path
):
    source = served(tmp_path)
    path = fetch(source, "numbers.csv", alone)
    assert "no digest" in capsys.readouterr().err
    note = path.with_name("numbers.csv.sha256")
    assert (
        note.read_text()
        == f"{hashlib.sha256(b'1,2' + chr(10).encode()).hexdigest()}  numbers.csv\n"
    )
    path.write_text("1,3\n")
    with refused("has changed", str(path), note.name, source.url):
        fetch(source, "numbers.csv", alone)
    path.unlink()
    assert fetch(source, "numbers.csv", alone).read_text() == "1,2\n", "it is downloaded again"


def test_a_file_put_into_the_cache_by_hand_is_noted_at_first_use(alone, refused, capsys, tmp_path):
    write(cached(), "mine")
    fetch(served(tmp_path), "numbers.csv")
    assert "used for the first time" in capsys.readouterr().err
    cached().write_text("changed")
    with refused("has changed"):
        fetch(served(tmp_path), "numbers.csv")


def test_the_users_own_folders_are_only_read(alone, tmp_path):
    path = write(alone / "made" / "numbers.csv", "mine")
    fetch(served(tmp_path, digest=digest(b"other")), "numbers.csv", alone)
    path.write_text("changed")
    assert fetch(served(tmp_path), "numbers.csv", alone) == path
    assert [p.name for p in path.parent.iterdir()] == ["numbers.csv"]


def zipped(names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(names):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in names.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize(("ending", "pack"), [("zip", zipped), ("tar.gz", tarred)])
def test_what_we_want_of_an_archive_is_kept(alone, online, refused, tmp_path, ending, pack):
    members = {"top/numbers.csv": b"1\n", "top/deep/more.csv": b"2\n", "../evil": b"3\n"}
    source = served(tmp_path, pack(members), f"all.{ending}")
    source = replace(source, files=("numbers.csv", "deep/more.csv"))
    assert fetch(source, "deep/more.csv").read_bytes() == b"2\n"
    found = {p.name for p in files.cache().rglob("*") if p.is_file()}
    assert found == {f"{n}.csv{end}" for n in ("numbers", "more") for end in ("", ".sha256")}
    with refused("absent.csv", "the archive has no absent.csv"):
        fetch(replace(source, files=("absent.csv",)), "absent.csv")
    write(tmp_path / "served" / f"all.{ending}", pack(members)[:-30])
    with refused("other.csv", "cannot be downloaded"):
        fetch(replace(source, files=("other.csv",)), "other.csv")
    assert leftovers() == []


def test_an_answer_that_is_too_long_is_refused(alone, online, refused, tmp_path):
    with refused("more than 3 bytes were sent"):
        fetch(replace(served(tmp_path), most=3), "numbers.csv")
    assert leftovers() == []


class Answer(io.BytesIO):
    """An answer whose header promises ten bytes."""

    headers = {"Content-Length": "10"}  # noqa: RUF012


def test_an_answer_that_is_too_short_is_refused(alone, online, refused, tmp_path, monkeypatch):
    seen = []

    def opener(request, timeout):
        seen.append((request.full_url, timeout))
        return Answer(b"1234")

    monkeypatch.setattr(files, "urlopen", opener)
    with refused("only 4 of 10 bytes arrived"):
        fetch(served(tmp_path), "numbers.csv")
    [(url, timeout)] = seen
    assert url == served(tmp_path).url
    assert 0 < timeout <= 60


def test_a_missing_file_is_one_sentence_with_its_address(alone, online, refused, tmp_path):
    source = served(tmp_path)
    (tmp_path / "served" / "numbers.csv").unlink()
    with refused("numbers.csv", str(alone), str(files.cache()), source.url, "by hand"):
        fetch(source, "numbers.csv", alone)
    with refused(f"numbers.csv is not in {files.cache()}"):
        fetch(source, "numbers.csv")


@pytest.mark.parametrize(
    ("load", "url"),
    [
        (emnist, EMNIST.url),
        (cifar10, CIFAR10.url),
        (cifar100, CIFAR100.url),
        (concrete, CONCRETE.url),
        (heart_disease, HOSPITALS["cleveland"].url),
        (a9a, A9A_TRAIN.url),
        (shakespeare, SHAKESPEARE.url),
    ],
)
def test_nothing_is_downloaded_when_offline(alone, refused, monkeypatch, load, url):
    monkeypatch.setattr(files, "urlopen", None)
    with refused("TRIMTAB_OFFLINE is set", str(alone), url):
        load(data=alone)
    assert not files.cache().exists()


def test_a_folder_that_does_not_exist_is_refused(refused):
    with refused("nowhere: there is no such folder"):
        concrete("nowhere")


def test_data_errors_are_value_errors():
    assert issubclass(DataError, ValueError)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.files[0])
def test_addresses_are_secure(source):
    assert source.url.startswith("https://")
    if source.digest is not None:
        kind, published = source.digest.split(":")
        assert len(published) == {"md5": 32, "sha256": 64}[kind]


# -- the real data, where there are any


def classes(y):
    return torch.bincount(y)


def there(folder, *names):
    """Skip a test whose files are not in the folder."""
    for name in names:
        if not (folder / name).is_file():
            pytest.skip(f"needs real data: {name} is not in TRIMTAB_DATA")


def test_real_emnist(real_data):
    there(real_data, "emnist/emnist47-train-images-idx3-ubyte.gz")
    (X, y), (X_test, y_test), name = emnist(data=real_data)
    if not name.startswith("EMNIST, 47 classes"):
        pytest.skip("the official EMNIST Balanced is at hand")
    assert name == "EMNIST, 47 classes, 97,526 / 9,400"
    assert (X.shape, X_test.shape) == ((97_526, 784), (9_400, 784))
    assert (float(X.min()), float(X.max())) == (0, 1)
    assert 0.17 < float(X[:1000].mean()) < 0.18
    assert classes(y).max() == 2400
    assert classes(y[:32_900]).tolist() == [700] * 47
    assert classes(y_test).tolist() == [200] * 47
    # Upright, the mean L (class 21) leans on its left and stands on its bottom.
    L = X[y == 21].mean(0).reshape(28, 28)
    assert L[:, :14].sum() > 1.2 * L[:, 14:].sum()
    T = X[y == 29].mean(0).reshape(28, 28)
    assert T[:14].sum() > 1.2 * T[14:].sum()


def test_real_emnist_by_class(real_data):
    there(real_data, "emnist/emnist-byclass-test-images-idx3-ubyte.gz")
    found = emnist("byclass", real_data)
    if not found.name.startswith("EMNIST, 62 classes"):
        pytest.skip("the official EMNIST ByClass is at hand")
    assert found.name == "EMNIST, 62 classes, 100,000 / 16,323"
    assert [len(classes(y)) for _, y in (found.train, found.test)] == [62, 62]


def test_real_cifar10(real_data):
    there(real_data, "cifar10/cifar-10-batches-bin/test_batch.bin")
    (X, y), (X_test, y_test), name = cifar10(real_data)
    assert name.startswith("CIFAR-10, ")
    assert X.shape == (len(y), 3, 32, 32)
    assert len(y) % 10_000 == 0
    assert (float(X.min()), float(X.max())) == (0, 1)
    assert classes(y_test).tolist() == [1000] * 10
    assert X_test.shape == (10_000, 3, 32, 32)
    near = (X_test[:, :, 1:] - X_test[:, :, :-1]).abs().mean()
    assert near < 0.1, "neighbours in a photograph are alike"


def test_real_concrete(real_data):
    there(real_data, "concrete/concrete.csv")
    X, y = concrete(real_data)
    assert (X.shape, y.shape) == ((1030, 8), (1030, 1))
    residual = torch.linalg.lstsq(X, y).solution
    left = float((X @ residual - y).square().mean())
    assert 1 - left == pytest.approx(0.6155, abs=1e-3)  # R^2 of least squares on these features


def test_real_heart_disease(real_data):
    there(real_data, *(f"heart-disease/processed.{hospital}.data" for hospital in HOSPITALS))
    found = heart_disease(real_data)
    sizes = [len(split.train[1]) + len(split.test[1]) for split in found.values()]
    assert sizes == [303, 294, 123, 200]
    ill = [int(split.train[1].sum() + split.test[1].sum()) for split in found.values()]
    assert ill == [139, 106, 115, 149]
    assert all(split.train[0].isfinite().all() for split in found.values())
    cholesterol = torch.cat([part[0][:, 7] for part in found["switzerland"][:2]])
    assert cholesterol.count_nonzero() == 0
    for hospital, source in HOSPITALS.items():
        raw = (real_data / "heart-disease" / f"processed.{hospital}.data").read_bytes()
        assert digest(raw, "md5") == source.digest


def test_real_a9a(real_data):
    there(real_data, "a9a/a9a", "a9a/a9a.t")
    (X, y), (X_test, y_test), _ = a9a(real_data)
    assert (X.shape, X_test.shape) == ((32_561, 123), (16_281, 123))
    assert [int(y.sum()), int(y_test.sum())] == [7841, 3846]
    assert set(X.unique().tolist()) == {0, 1}
    assert X.sum(1).max() == 14


def test_real_shakespeare(real_data):
    there(real_data, "shakespeare/tinyshakespeare-input.txt")
    plays = shakespeare(real_data)
    assert (len(plays.speakers), len(plays.characters)) == (193, 65)
    assert plays.speakers[:2] == ["GLOUCESTER", "DUKE VINCENTIO"]
    X, _ = plays.train[0]
    assert "".join(plays.characters[t] for t in X[0]).startswith("Now is the winter of our discon")
    raw = Path(os.fspath(real_data), "shakespeare", "tinyshakespeare-input.txt").read_bytes()
    assert digest(raw) == SHAKESPEARE.digest
