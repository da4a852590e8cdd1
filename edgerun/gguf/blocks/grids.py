"""The codebooks of the IQ formats: the vectors that an index in a block stands for.

Source: iq2xxs_grid … iq1s_grid of ggml-common.h (ggml-org, MIT), as facts. Each vector is a
number in base ``len(levels)``, first entry = lowest digit; the numbers of a grid ascend, and
their differences (uint16) are kept compressed.
"""

from __future__ import annotations

import base64
import functools
import zlib

import numpy as np
import numpy.typing as npt

__all__ = ["GRIDS", "grid", "sign_table"]

# name -> (levels, entries of a vector, packed differences)
_PACKED: dict[str, tuple[tuple[int, ...], int, bytes]] = {
    "iq2xxs": (
        (8, 25, 43),
        8,
        b"c-mEw!AiqG6h*Hxgb;=xA%sE7P$Wnw5<+oNqze}!(nXOjq|1JZOFzJG@mu^J&%BO72{W1Z=HC16dm~-``3jbs&xM"
        b"@}TVAF8ooYoQPt>T_wPmZB>+{*qajlk9rC^N6`qlNbe#dRl2Gn!bE5Z3(FCiN;l_u6YGd;R1Ep-Fp$ykjR_;Ey|?"
        b"kv;k%6zZcC;qP)S8D*<>O@t~&AaaZbzFdVxs%3pQykcX`H1GBN4+E3>X4C+N-JY-aCYuA_1Cipyp8miJOu4@3$h}"
        b"=gum6^_yOesZiM0V26EJgzD>Qw#lj~4sF(RI(i@~1blf*+9&|+eJpYmGpa(p)R66R5seBqXf;p+YnDhhew-^K",
    ),
    "iq2xs": (
        (8, 25, 43),
        8,
        b"c-n=ML2JV>426XW#+VR72%(HnN*JMx5=t38j2(LDX^fr6PCM<m-?E>)&$1WVrs*(oB~^M)dX|WpIoTE8p4j2@S1a"
        b"vVg-yTJS=8&DNg+<^f0)AUXE8hoty+b~TUlImlPOy0BnQEzXho)lyW-v?hFe|Olgeoq71)LjV!YzqPqKoQW4Ebdk"
        b"JrdH@sxNqekOw)<zb@fA5S$}mYNkc9TP{El6w!nC!XUyr`bKYHQhZCUGVjqe@pjE?XJ(9!QoO>q1@B`h}x8D<*Id"
        b"fu?A}xQ5>fuUZ<JfW;UoDx5mh$EM+%p<5ZXMx)w#PtU+n;a_z8FO^kf&Zp4n9>TTo;v?W=EylO8Sc?WwZ2dYBl+y"
        b"*o!x&>~Fs`1s!v16mUR77ex2JT+BuB6&4hLcY?0<s^cEckyxZYwX`HSs%D;Xt*azYnJCdE1q;MV%e!136vNK2(Qp"
        b"*7BnmasRf86J9B3-^23@mMj^e",
    ),
    "iq2s": (
        (8, 25, 43),
        8,
        b"c-oy+OKQVF3>9GzLojAAC757JFvWyWvM3>oE_;Tap^M!A0F^XjXZ~@5u|1ZhXX!m@46rF2YQ;0sRb?YFiBiEEjC>"
        b"GufY1uEBCCFoM|@!6iz$kFkT=3M%E-4PbeS4UY;YxQkRMxoL``^%Ypq)tp~+URs`{vE)iovWYqRi!E_Za+e9g}>S"
        b"@U50l;wS*n@%G843>c%tr($&V^J%cg_aIffktyrVvvm{U1oNA;YAfYu3i~;)ZpG3m;#>nj%kE%s-hu3?uNIOiu$v"
        b"F*{pK&Qdeg7#;A_|<vv@}6|(|emeHMft4e%RjBQ10UR|Hs@xnQIt*1G1SRI|S4NC`IGw(Ishow3LC+eJZ_wbc0^J"
        b"M5Nmajv!WBHlzT(GBsAJ@T0`es9Y{0pDKy!tzfzZ0Uj^OX5U=VQIB<(x37SM#W4rY!0;n7~O;dg`$Yog1p96N~aD"
        b"r=<2BMH7y-ens4;eRz`04-`2r>RxCy()}j5_K!I4P7|F2<u;0bjQZ|)QVwwx?F{@8j-d?BRP7*t7tZ2?p8f%+y&0"
        b"h",
    ),
    "iq3xxs": (
        (4, 12, 20, 28, 36, 44, 52, 62),
        4,
        b"c-l>nT~C8R5JfK_-_RlyslnFP+N2s2qdxnlzBT^;f8&`cA%^TOJ9FmFos~kqn02LqJyot-zg?m!f03W1DrFO$dc>"
        b"$gi58rRSC=}d(+a}q(BqvNeP|$Rnmu$gYhO;Q3$*r##a`!pss|K8YI4=om1rDvVsFu{bSAU=r(|Ap-MeNqDU3c@="
        b"C_N>n!U!4&Gy3Dqq62+z<#@%L3i_vJ#0L?C^<*(R+DM8#K|Xn2a(`tq<c%|#9BcwU@Ll@xh?72KwWDKbtG$@dvcM"
        b"hzteZXX#zDs*ld}ew3+74i2mZ($i^!+5L=WUsrf<es5d%W-d-TUNdsT#8DFt(@NE6|MD2}Qed!PKX%Cq",
    ),
    "iq3s": (
        (1, 3, 5, 7, 9, 11, 13, 15),
        4,
        b"c-mD{Yfr;440PH&+9q9Bw!y|g0u5<`?-T$3pK-o8(@>SfcKkSBToH$_myV~y*-`cqB|z%UqH==P-~Bwj)Z(cnnXw"
        b"1NIa(a=dirR#mT87GK=-sH)`*OlnWvXbO|6mpA`|q&+hD#6q|6K(S)nE7Za#`+|A4b~ReR7F%|8-r?NOr=t0mq??"
        b"33~04avmSSg80MBUeb-SejX-a&macxyY5>>HYc6Xn{?mhkq!$J1S=!ReiR%(iM%{x@(OiwTZbC@q1#fY<l$Dsz!8"
        b"}v5&AP-km4~ShPmQKG1uTH*)ETJHzs7csfS3+2~m>GOA-HMY|=2dQ;!<L~erhHu6+71LsYrXypsf%$<o~g0{o=Ve"
        b"DqP*qhY;6F#jJtajv-MB-L-fjk7ffbvx67wnZTIG>Qw0a+o^Pe>~wkDM@N>BL-$veqm1Z&aQ~;8G?hR-NSqr$en7"
        b"XR*mCxGnO9wL{b|JK5lDGkXC3EpolfGtfl#ty~tOzQK3F>Vaer-?Mxp=0-H5Wzb5RA;Yu7o3(#V`8;tlHppH7>ZA"
        b"O?_X9|;@&~>@55W",
    ),
    "iq1s": (
        (-1, 0, 1),
        8,
        b"c-oCuYnS672(5x7leROn-}nFj&NaLQO=k9Zni?M{aJi7jqk4l!>rd>z_8=bF!-)0pQFONU-nkNe#zwav_MbbbKV>"
        b"!Q$>48K-AUY#&->E1Q+DZdvZCs2(eawvhsvxz``K5&`aik8g-;a8$S1FN#ak`TUSn(Q{RukqQt5Q7JE*0ljoE{5X"
        b")<fD>?!@FtHJMYO;(ZG!kWzNY^QU_w|k@oU!mICY%aGfdM5ID!?s0lSp9a8tS@_P#p)9oYvGP%T3OOa_U-Wh&=1p"
        b"YP`RLz3tLjqwX<)~wXGNT6eJuSDK-lo%R}pNA7n|8?(xyrZvB6oyki){zWzv<Fa$(YT+NDqH$In=EzO^#c$=dbZ|"
        b"8Q^cu!uH5jhbUb>#6euqbN}_y1^eQqx_eSZ<2N<0g)d5CeuuP_1o*!U;`LI`0}9x7%2Lxu(*-SyN$>fr^2!I$6Bx"
        b"xfw%(>1T+fLw%1O7p=chKN)(TmRQJ=Od6?eGe&WGH#`p17v<;~v&~}!Zcc>|lg7?wnW2}k!WQyDj2-I%-=`!UFvM"
        b"%*hQXZ{TjrT>k9*nu$##r9gn<F0zN8s~63=IT$+oH&v+<_mOj`Vbet*kLdB=yxUtv5Hmmz+G1z{z5woF!|v|9W=T"
        b"ejS??5tb4Xm!yZmKj)N)`@**+2B&H&m8PB#(+_1BP~THDh})9Q|ZS!yo@Kh#Kh`#&^Fc(Gt|cDK}THFaKzP?EcFV"
        b"^O9_2~kax&Xf;O=z=^cuXNp`kO{L<>FFw2Rx-^zJkp3&>Xes#&RyRMt#6jR-FR#P(v)u895;}A|3|21XsoOL3CP$"
        b"lL34*dI4uZ^rAS!UNPnDZmJCt|#U-@_`a(+ls3Q40Ha3l`3qriH5Eu0E`xx{O*jodNHy5}s=Fb>^*A=H{6gwYH_e"
        b"M$z9R2VB);r_VoAB`j96cmdXC3oI9FNbve()bP;`rtLn}tyV)EzgX~nlgT9tDP-tfzenbLv|=8;#w}iNj69S5MjE"
        b"ffR#nHI38gznT8<le?i#UW$`mC<4tOo~e|%I!y}#Dlq^#KjGZ`n7`UO2gjFAqnR57q|;i?5)@0B}d3&-jMQVy3o@"
        b"T0dqeZ9P#iQhlO($yE*$exASA!bvlD?wvMzD)7gO7V~So<emC&ij8SEaZxSmfU~VG3E{69V3%~@-{ld)rD!EKj^+"
        b"|l}_A4-_hKPS;}hLf0HK}p#",
    ),
}

#: Names that :func:`grid` knows.
GRIDS = tuple(_PACKED)


@functools.cache
def grid(name: str) -> npt.NDArray[np.int8]:
    """A codebook: int8 [n, 8], or [n, 4] for iq3; read-only.

    ``iq2xxs`` (n = 256), ``iq2xs`` (512) and ``iq2s`` (1024) hold magnitudes 8, 25, 43;
    ``iq3xxs`` (256) magnitudes 4 to 62; ``iq3s`` (512) magnitudes 1 to 15; ``iq1s`` (2048)
    holds -1, 0, 1.

    Raises:
        KeyError: there is no such grid.
    """
    levels, width, packed = _PACKED[name]
    steps = np.frombuffer(zlib.decompress(base64.b85decode(packed)), "<u2")
    codes = np.cumsum(steps, dtype=np.int64)
    digits = codes[:, None] // len(levels) ** np.arange(width) % len(levels)
    table: npt.NDArray[np.int8] = np.array(levels, np.int8)[digits]
    table.flags.writeable = False
    return table


@functools.cache
def sign_table() -> npt.NDArray[np.float32]:
    """Signs that a 7-bit index stands for: float32 [128, 8] of 1 and -1; read-only.

    Bit k of the index negates entry k; entry 7 makes the number of negative ones even.
    """
    bits = np.unpackbits(np.arange(128, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    bits[:, 7] = bits[:, :7].sum(axis=1) & 1
    signs: npt.NDArray[np.float32] = np.where(bits == 0, np.float32(1), np.float32(-1))
    signs.flags.writeable = False
    return signs
